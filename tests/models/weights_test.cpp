#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/resnet.h"
#include "bellows/models/weights.h"
#include "bellows/system/file.h"
#include "tests/models/golden.h"
#include "tests/support/errors.h"

namespace bellows::models {

namespace {

class ModelWeights : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              c10::str("model_weights_", getpid(), "_", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  static void expect_python_logits(const Model& model) {
    model.eval();
    const auto values = golden::read("small_models.json").at("digits_resnet_w2").get<std::vector<double>>();
    const at::Tensor logits = model.forward(formula_uniform("input0", {16, 1, 8, 8}).to(torch::kFloat32));
    EXPECT_TRUE(
        torch::allclose(logits.flatten(), torch::tensor(values, torch::kFloat64).to(torch::kFloat32), 1e-4, 1e-5));
  }

  static void expect_equal_state(const Model& a, const Model& b) {
    const NamedTensors left = a.state_dict(), right = b.state_dict();
    ASSERT_EQ(left.size(), right.size());
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].first, right[i].first);
      EXPECT_TRUE(torch::equal(left[i].second, right[i].second)) << left[i].first;
    }
  }

  std::filesystem::path folder_;
};

}  // namespace

TEST_F(ModelWeights, FilesOfPythonLoadAndAnswerAlike) {
  for (const char* name : {"digits_resnet_w2.pt", "digits_resnet_w2.safetensors"}) {
    SCOPED_TRACE(name);
    const Model model = digits_resnet({.width = 2});
    const LoadReport report = load_state_dict(model, io::load_tensors(golden::path(name)));
    EXPECT_TRUE(report.complete()) << report.to_string();
    EXPECT_EQ(model.named_buffers()[2].first, "bn1.num_batches_tracked");
    EXPECT_EQ(model.named_buffers()[2].second.item<int64_t>(), 3);
    expect_python_logits(model);
  }
}

// torchvision's files hold float32 by these names (NamesShapesAndOrderAreTorchvisions); here one of each kind, written
// and read.
// Like torchvision's oldest files: the format before PyTorch 1.6, from before batch norms had counters.
TEST_F(ModelWeights, OldFilesOfPythonLoadAndAnswerAlike) {
  const Model model = digits_resnet({.width = 2});
  const NamedTensors tensors = io::load_tensors(golden::path("digits_resnet_w2_old.pt"));
  EXPECT_THAT(message_of([&] { load_state_dict(model, tensors); }), testing::HasSubstr("num_batches_tracked"));
  EXPECT_TRUE(load_weights(model, tensors).complete());
  EXPECT_EQ(model.named_buffers()[2].second.item<int64_t>(), 0);
  expect_python_logits(model);
}

TEST_F(ModelWeights, ResNet18TravelsThroughBothKindsOfFile) {
  const Model source = resnet18({.num_classes = 10});
  set_formula_weights(source);
  source.named_buffers()[1].second.fill_(2.5);
  io::torch_save(file("resnet18.pth"), source.state_dict());
  io::save_safetensors(file("resnet18.safetensors"), source.state_dict());
  for (const char* name : {"resnet18.pth", "resnet18.safetensors"}) {
    SCOPED_TRACE(name);
    const Model model = resnet18({.num_classes = 10});
    EXPECT_TRUE(load_state_dict(model, io::load_tensors(file(name))).complete());
    expect_equal_state(model, source);
  }
}

TEST_F(ModelWeights, AnotherDtypeIsConverted) {
  const Model model = digits_resnet({.width = 2});
  model.module()->to(torch::kFloat64);
  load_state_dict(model, io::load_tensors(golden::path("digits_resnet_w2.pt")));
  EXPECT_EQ(model.parameters()[0].scalar_type(), torch::kFloat64);
  EXPECT_EQ(model.parameters()[0].flatten()[0].item<double>(),
            formula_uniform("conv1.weight", {2, 1, 3, 3}).flatten()[0].item<double>() * 0.5);
}

TEST_F(ModelWeights, StrictLoadReportsAllDifferencesAndCopiesNothing) {
  NamedTensors tensors = io::load_tensors(golden::path("digits_resnet_w2.safetensors"));
  std::erase_if(tensors, [](const auto& item) { return item.first == "bn1.running_mean"; });
  for (auto& [name, tensor] : tensors) {
    if (name == "fc.bias") name = "fc.bais";
  }
  const Model model = digits_resnet({.num_classes = 7, .width = 2});
  const at::Tensor before = model.parameters()[0].detach().clone();
  const std::string message = message_of([&] { load_state_dict(model, tensors); });
  EXPECT_THAT(message, testing::HasSubstr("missing (2)"));
  EXPECT_THAT(message, testing::HasSubstr("bn1.running_mean"));
  EXPECT_THAT(message, testing::HasSubstr("fc.bais Did you mean \"fc.bias\"?"));
  EXPECT_THAT(message, testing::HasSubstr("fc.weight: file [10, 8], model [7, 8]"));
  EXPECT_TRUE(torch::equal(model.parameters()[0], before));
}

TEST_F(ModelWeights, LenientLoadTakesWhatFits) {
  const NamedTensors tensors = io::load_tensors(golden::path("digits_resnet_w2.pt"));
  const Model model = digits_resnet({.num_classes = 7, .width = 2});
  const LoadReport report = load_state_dict(model, tensors, /*strict=*/false);
  EXPECT_THAT(report.mismatched, testing::SizeIs(2));
  EXPECT_THAT(report.missing, testing::IsEmpty());
  EXPECT_TRUE(torch::equal(model.parameters()[0], tensors[0].second));
}

TEST_F(ModelWeights, TruncatedFilesAreRefusedByName) {
  for (const char* name : {"digits_resnet_w2.pt", "digits_resnet_w2.safetensors"}) {
    const std::string whole = read_text_file(golden::path(name));
    for (const size_t length : {size_t{0}, size_t{5}, whole.size() / 2, whole.size() - 1}) {
      SCOPED_TRACE(c10::str(name, " cut to ", length));
      write_text_file(file(name), std::string_view(whole).substr(0, length));
      EXPECT_THAT(message_of([&] { io::load_tensors(file(name)); }), testing::HasSubstr(name));
    }
  }
}

TEST_F(ModelWeights, ForeignFilesAreRefusedByName) {
  write_text_file(file("notes.pt"), "just some text, long enough to be anything at all\n");
  EXPECT_THAT(message_of([&] { io::load_tensors(file("notes.pt")); }), testing::HasSubstr("notes.pt"));
  EXPECT_THAT(message_of([&] { io::load_tensors(BELLOWS_SOURCE_DIR "/data/digits/test-000.tar"); }),
              testing::HasSubstr("test-000.tar"));
  EXPECT_THAT(message_of([&] { io::load_tensors(file("absent.pt")); }), testing::HasSubstr("absent.pt"));
}

}  // namespace bellows::models
