#include "bellows/models/exported/exported_model.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "bellows/compile/compile.h"
#include "tests/models/exported/reference.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace bellows::models::exported {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string golden(const std::string& file) {
  return BELLOWS_SOURCE_DIR "/tests/goldens/exported/" + file;
}

/// Differences are 0 on the processor that computed the references. Others round differently.
constexpr double kOtherProcessors = 1e-5;
/// Kernels for evaluation order sums differently from those for training.
constexpr double kEvaluation = 1e-5;

/// The references were computed by one thread.
class OneThread final : public testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const testing::Environment* const one_thread = testing::AddGlobalTestEnvironment(new OneThread);

class ExportedProgramTest : public testing::TestWithParam<const char*> {};

}  // namespace

TEST_P(ExportedProgramTest, TrainsAsInPython) {
  const std::string name = GetParam();
  const Differences found = compare_training(golden(name + ".pt2"), Reference(golden(name + ".ref")));
  std::cout << name << ": largest differences: outputs " << found.outputs << ", gradients " << found.gradients
            << ", buffers " << found.buffers << ", another size " << found.other_size << ", losses of 20 steps "
            << found.losses << "\n";
  EXPECT_LE(found.worst(), kOtherProcessors);
}

TEST_P(ExportedProgramTest, EvaluatesAsInPython) {
  const std::string name = GetParam();
  if (name == "depth") {
    const Model depth = load_exported(golden("depth.pt2"));
    EXPECT_THAT(message_of([&] { depth.eval(); }),
                AllOf(HasSubstr("cannot be switched to evaluation mode"), HasSubstr("bernoulli"),
                      HasSubstr("exported.py:"), HasSubstr("package_pt2")));
    return;
  }
  const Reference reference(golden(name + ".ref"));
  const Model model = load_exported(golden(name + ".pt2"));
  EXPECT_TRUE(model.training());
  const c10::NoGradGuard no_grad;
  {
    const EvalMode eval(model);
    EXPECT_LE(difference(run_seeded(model, reference.list("input")), reference.list("eval")), kEvaluation);
  }
  EXPECT_TRUE(model.training());
}

TEST_P(ExportedProgramTest, RejectsSizesOutOfRange) {
  const std::string name = GetParam();
  const Reference reference(golden(name + ".ref"));
  const Model model = load_exported(golden(name + ".pt2"));
  EXPECT_THAT(message_of([&] { model.forward_all(reference.list("bad")); }),
              AllOf(HasSubstr(name + ".pt2"), HasSubstr("input \""), HasSubstr("dimension")));
}

TEST_P(ExportedProgramTest, IsWrittenWithTrainedWeights) {
  const std::string name = GetParam();
  const TemporaryFolder folder;
  const char* kept = std::getenv("BELLOWS_EXPORTED_OUT");
  const std::string path = (kept ? std::string(kept) : folder.path()) + "/" + name + ".trained.pt2";
  const Reference reference(golden(name + ".ref"));
  const Model model = load_exported(golden(name + ".pt2"));
  Training(model).step(reference.list("input"));
  save_exported(model, path);
  const Model again = load_exported(path);
  const NamedTensors state = model.state_dict(), restored = again.state_dict();
  ASSERT_EQ(state.size(), restored.size());
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_EQ(state[i].first, restored[i].first);
    EXPECT_TRUE(at::equal(state[i].second, restored[i].second)) << state[i].first;
    EXPECT_EQ(state[i].second.strides(), restored[i].second.strides()) << state[i].first;
  }
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> outputs = run_seeded(again, reference.list("input"));
  EXPECT_EQ(difference(outputs, run_seeded(model, reference.list("input"))), 0);
  if (!kept) return;
  NamedTensors results;
  for (size_t i = 0; i < outputs.size(); ++i) results.emplace_back(c10::str("output.", i), outputs[i]);
  for (const auto& [index, tensor] : reference.group("input")) results.emplace_back("input." + index, tensor);
  io::torch_save(path + ".outputs", results);
}

INSTANTIATE_TEST_SUITE_P(Programs, ExportedProgramTest,
                         testing::Values("cnn", "cnn_functional", "bert", "gpt2", "two", "lstm", "cond", "buffers",
                                         "buffers_functional", "average", "average_functional", "tied", "keyword",
                                         "dropouts", "shapes", "flow", "odd", "depth", "autocast", "scan"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ExportedModelTest, NamesInputsAndOutputs) {
  const Model two = load_exported(golden("two.pt2"));
  EXPECT_THAT(two.inputs(), ElementsAre(ModelInput{"left"}, ModelInput{"pair.0"}, ModelInput{"pair.1"}));
  EXPECT_THAT(two.outputs(), ElementsAre("scores", "energy"));
  const Model lstm = load_exported(golden("lstm.pt2"));
  EXPECT_THAT(lstm.outputs(), ElementsAre("output_0", "output_1"));
  const Model bert = load_exported(golden("bert.pt2"));
  EXPECT_THAT(bert.inputs(), ElementsAre(ModelInput{"input_ids"}, ModelInput{"attention_mask"}));
  EXPECT_THAT(bert.outputs(), ElementsAre("logits"));
  const Model cnn = load_exported(golden("cnn.pt2"));
  EXPECT_THAT(cnn.inputs(), ElementsAre(ModelInput{"x"}));
  EXPECT_THAT(cnn.outputs(), ElementsAre("output"));
  EXPECT_THAT(cnn.module_types(), testing::Contains(ModuleTypes::value_type("block.bn1", "BatchNorm2d")));
}

TEST(ExportedModelTest, ConstantsOfTheExportAreChecked) {
  const Model model = load_exported(golden("keyword.pt2"));
  EXPECT_THAT(model.inputs(), testing::Contains(ModelInput{"power", true}));
  const NamedTensors inputs{{"x", at::rand({3, 4})}, {"gain", at::ones({3})}, {"bias", at::ones({3})}};
  NamedTensors same = inputs, other = inputs;
  same.emplace_back("power", at::tensor(3));
  other.emplace_back("power", at::tensor(2));
  EXPECT_TRUE(at::equal(model.forward(inputs)[0].second, model.forward(same)[0].second));
  EXPECT_THAT(message_of([&] { model.forward(other); }), HasSubstr("input \"power\": the program was exported with the "
                                                                   "constant 3, got 2"));
}

TEST(ExportedModelTest, TiedWeightsAreOneParameter) {
  const Model model = load_exported(golden("tied.pt2"));
  EXPECT_EQ(model.parameters().size(), 3u);
  EXPECT_EQ(load_exported(golden("gpt2.pt2")).parameters()[0].size(0), 40);
}

TEST(ExportedModelTest, PairOfProgramsSharesItsTensors) {
  const Model pair = load_exported(golden("depth_pair.pt2"));
  const Reference reference(golden("depth_pair.ref"));
  Training training(pair);
  seed();
  for (int i = 0; i < 20; ++i) training.step(reference.list("input"));
  pair.eval();
  const c10::NoGradGuard no_grad;
  EXPECT_LE(difference(run_seeded(pair, reference.list("input")), reference.list("trained")), kOtherProcessors);
  const TemporaryFolder folder;
  save_exported(pair, folder / "pair.pt2");
  const Model again = load_exported(folder / "pair.pt2", "eval");
  EXPECT_EQ(difference(run_seeded(again, reference.list("input")), run_seeded(pair, reference.list("input"))), 0);
  EXPECT_THAT(message_of([&] { load_exported(folder / "pair.pt2", "evl"); }), HasSubstr("Did you mean \"eval\"?"));
}

TEST(ExportedModelTest, EvaluationExportsCannotBeTrained) {
  const Model model = load_exported(golden("cnn_eval.pt2"));
  EXPECT_FALSE(model.training());
  const Reference reference(golden("cnn_eval.ref"));
  const c10::NoGradGuard no_grad;
  EXPECT_LE(difference(run_seeded(model, reference.list("input")), reference.list("eval")), kEvaluation);
  EXPECT_THAT(message_of([&] { model.train(); }),
              AllOf(HasSubstr("cnn_eval.pt2"), HasSubstr("exported in evaluation mode")));
}

TEST(ExportedModelTest, InputsAreChecked) {
  const Model model = load_exported(golden("bert.pt2"));
  const at::Tensor ids = at::ones({3, 8}, at::kLong);
  EXPECT_THAT(message_of([&] { model.forward({{"input_ids", ids}}); }), HasSubstr("\"attention_mask\" is missing"));
  EXPECT_THAT(message_of([&] {
                model.forward_all({ids, ids.to(at::kFloat)});
              }),
              HasSubstr("input \"attention_mask\": expected Long, got Float"));
  EXPECT_THAT(message_of([&] {
                model.forward_all({ids, at::ones({3}, at::kLong)});
              }),
              HasSubstr("expected 2 dimensions, got the shape [3]"));
  EXPECT_THAT(message_of([&] {
                model.forward_all({ids, at::ones({3, 9}, at::kLong)});
              }),
              AllOf(HasSubstr("input \"attention_mask\", dimension 1"), HasSubstr("got 9")));
  const Model cnn = load_exported(golden("cnn.pt2"));
  EXPECT_THAT(message_of([&] {
                cnn.forward(at::ones({4, 3, 8, 8}));
              }),
              AllOf(HasSubstr("input \"x\", dimension 1"), HasSubstr("fixed size 1, got 3")));
}

TEST(ExportedModelTest, DtypesOfTheProgramCannotBeChanged) {
  const Model model = load_exported(golden("cnn.pt2"));
  model.to(at::kFloat);
  EXPECT_THAT(message_of([&] { model.to(at::kBFloat16); }), HasSubstr("the program contains dtypes"));
}

TEST(ExportedModelTest, IsCompiled) {
  const Model model = load_exported(golden("cnn.pt2")), plain = load_exported(golden("cnn.pt2"));
  const std::vector<at::Tensor> inputs = Reference(golden("cnn.ref")).list("input");
  const auto forward = compile([&](const at::Tensor& x) { return model.forward(x); }, {.exact = true, .always = true});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor output = forward(inputs[0]), expected = plain.forward(inputs[0]);
    EXPECT_TRUE(at::equal(output, expected)) << i;
    loss_of({output}).backward();
    loss_of({expected}).backward();
  }
  const NamedTensors gradients = gradients_of(model), others = gradients_of(plain);
  ASSERT_EQ(gradients.size(), 11u);
  for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(at::equal(gradients[i].second, others[i].second));
  for (size_t i = 0; i < model.buffers().size(); ++i) EXPECT_TRUE(at::equal(model.buffers()[i], plain.buffers()[i]));
}

TEST(ExportedModelTest, OtherModelsAreNotSaved) {
  const TemporaryFolder folder;
  const Model mlp = registry().at("mlp").make(10, 1);
  EXPECT_THAT(message_of([&] { save_exported(mlp, folder / "mlp.pt2"); }),
              HasSubstr("is not a program of torch.export"));
}

TEST(ExportedModelTest, EntriesDescribeTheData) {
  const ModelEntry cnn = model_entry(golden("cnn.pt2"));
  EXPECT_EQ(cnn.input, InputKind::image);
  EXPECT_THAT(cnn.input_shape, ElementsAre(1, 8, 8));
  EXPECT_EQ(cnn.make(10, 1).forward(at::rand({4, 1, 8, 8})).size(1), 10);
  EXPECT_THAT(message_of([&] {
                cnn.make(7, 1).forward(at::rand({4, 1, 8, 8}));
              }),
              HasSubstr("[batch, 7], got [4, 10]"));
  EXPECT_EQ(model_entry(golden("tied.pt2")).input, InputKind::tokens);
  const ModelEntry bert = model_entry(golden("bert.pt2"));
  EXPECT_EQ(bert.input, InputKind::arrays);
  EXPECT_EQ(bert.inputs.size(), 2u);
  const TemporaryFolder folder;
  const Model trained = cnn.make(10, 1);
  Training(trained).step({at::rand({4, 1, 8, 8})});
  save_exported(trained, folder / "cnn.pt2");  // through the wrapper of the entry
  EXPECT_TRUE(at::equal(load_exported(folder / "cnn.pt2").parameters()[0], trained.parameters()[0]));
}

/// Programs of `tools/goldens/exported.py --known FOLDER`, on the machine that wrote them.
TEST(ExportedModelTest, KnownModelsAgreeWithPython) {
  const char* folder = std::getenv("BELLOWS_EXPORTED_MODELS");
  int agree = 0, all = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder ? folder : golden(""))) {
    const std::string path = file.path();
    if (!folder || !path.ends_with(".pt2")) continue;
    ++all;
    const Differences found = compare_training(path, Reference(path.substr(0, path.size() - 4) + ".ref"));
    std::cout << std::filesystem::path(path).stem().string() << ": outputs " << found.outputs << ", gradients "
              << found.gradients << ", buffers " << found.buffers << ", another size " << found.other_size
              << ", losses " << found.losses << std::endl;
    agree += found.worst() <= kOtherProcessors;
  }
  if (folder) std::cout << agree << " of " << all << " models agree\n";
  EXPECT_EQ(agree, all);
}

}  // namespace bellows::models::exported
