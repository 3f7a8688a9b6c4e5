// TorchScript and .pt2 files. pytorch_programs_test.cpp and bench/export compare them with PyTorch in Python.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/export.h"
#include "bellows/io/archives/zip.h"
#include "bellows/models/registry.h"
#include "bellows/quant/quantize.h"

// An operator that PyTorch in Python does not have.
TORCH_LIBRARY(bellows_pytorch_test, library) {
  library.def("twice(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(bellows_pytorch_test, CompositeExplicitAutograd, library) {
  library.impl("twice", [](const at::Tensor& x) { return x * 2; });
}

namespace bellows {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

class Pytorch : public ::testing::Test {
 protected:
  Pytorch() {
    std::filesystem::create_directories(folder_);
    torch::manual_seed(1);
  }
  ~Pytorch() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  size_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  /// Exports a function in both formats. The check of the exports compares it with eager code.
  void expect_exact(const Function& function, const Tensors& inputs, const PytorchOptions& options = {}) const {
    const PytorchReport script = export_torchscript(function, inputs, path("f.torchscript"), options);
    EXPECT_EQ(script.largest_difference, 0);
    const PytorchReport pt2 = export_pt2(function, inputs, path("f.pt2"), options);
    EXPECT_EQ(pt2.largest_difference, 0);
  }

  /// Returns a file of a .pt2 archive.
  json part(const std::string& archive, const std::string& name) const {
    const MappedFile mapped(path(archive));
    const io::ZipReader zip(mapped.bytes(), archive);
    const io::ZipEntry* entry = zip.find(std::filesystem::path(archive).stem().string() + "/" + name);
    if (!entry) throw std::runtime_error("no " + name);
    return json::parse(std::string(reinterpret_cast<const char*>(entry->data.data()), entry->data.size()));
  }
  json weights_of(const std::string& archive) const {
    return part(archive, "data/weights/model_weights_config.json").at("config");
  }

 private:
  const std::string folder_ = ::testing::TempDir() + "bellows-pytorch-" + std::to_string(getpid());
};

struct PytorchNet : torch::nn::Module {
  PytorchNet() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    head = register_module("head", torch::nn::Sequential(torch::nn::Linear(4, 5)));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(norm(conv(x)).relu_().mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential head{nullptr};
};

TEST_F(Pytorch, TorchScriptHasTheNamesAndResultsOfTheModel) {
  const auto net = std::make_shared<PytorchNet>();
  const PytorchReport report =
      export_torchscript(Model::of(net), {torch::randn({2, 3, 8, 8})}, path("net.torchscript"));
  EXPECT_EQ(report.largest_difference, 0);
  EXPECT_EQ(report.checked_calls, 4);  // three recordings, and a batch of 1
  EXPECT_EQ(report.parameters, 5);
  EXPECT_EQ(report.buffers, 3);
  EXPECT_EQ(report.inputs[0].sizes, (std::vector<std::string>{"batch", "3", "8", "8"}));
  EXPECT_EQ(report.bytes, std::filesystem::file_size(path("net.torchscript")));

  torch::jit::Module module = torch::jit::load(path("net.torchscript"));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& one : module.named_parameters()) tensors[one.name] = one.value;
  for (const auto& one : module.named_buffers()) tensors[one.name] = one.value;
  for (const auto& one : net->named_parameters()) EXPECT_TRUE(tensors.at(one.key()).equal(one.value())) << one.key();
  for (const auto& one : net->named_buffers()) EXPECT_TRUE(tensors.at(one.key()).equal(one.value())) << one.key();
  EXPECT_TRUE(tensors.contains("head.0.weight"));
  EXPECT_EQ(module.get_method("forward").function().getSchema().arguments()[1].name(), "input");

  net->eval();
  const torch::NoGradGuard no_gradients;
  const at::Tensor x = torch::randn({7, 3, 8, 8});
  EXPECT_TRUE(module.forward({x}).toTensor().equal(net->forward(x)));
}

TEST_F(Pytorch, Pt2HasAProgramWithSymbolicSizes) {
  const auto net = std::make_shared<PytorchNet>();
  const PytorchReport report = export_pt2(Model::of(net), {torch::randn({2, 3, 8, 8})}, path("net.pt2"));
  EXPECT_EQ(report.largest_difference, 0);

  const json program = part("net.pt2", "models/model.json");
  EXPECT_EQ(program.at("schema_version").at("major"), 8);
  EXPECT_EQ(program.at("verifiers"), json({"ATEN"}));
  EXPECT_EQ(program.at("range_constraints").at("s0").at("min_val"), 1);
  const json& graph = program.at("graph_module").at("graph");
  EXPECT_EQ(graph.at("inputs").size(), 9u);  // five parameters, three buffers and the image
  const json& size = graph.at("tensor_values").at("input").at("sizes").at(0).at("as_expr");
  EXPECT_EQ(size.at("expr_str"), "Symbol('s0', positive=True, integer=True)");
  EXPECT_EQ(size.at("hint").at("as_int"), 2);
  std::vector<std::string> targets;
  for (const json& node : graph.at("nodes")) targets.push_back(node.at("target"));
  EXPECT_THAT(
      targets,
      ElementsAre("torch.ops.aten.convolution.default", "torch.ops.aten._native_batch_norm_legit_no_training.default",
                  "torch.ops.aten.relu.default", "torch.ops.aten.mean.dim", "torch.ops.aten.linear.default"));
  const json& signature = program.at("graph_module").at("signature");
  EXPECT_EQ(signature.at("input_specs").at(0).at("parameter").at("parameter_name"), "conv.weight");
  EXPECT_EQ(signature.at("input_specs").at(5).at("buffer").at("persistent"), true);
  EXPECT_TRUE(signature.at("input_specs").at(8).contains("user_input"));
  EXPECT_EQ(signature.at("output_specs").size(), 1u);

  const json weights = part("net.pt2", "data/weights/model_weights_config.json").at("config");
  EXPECT_EQ(weights.size(), 8u);
  EXPECT_EQ(weights.at("conv.weight").at("is_param"), true);
  EXPECT_EQ(weights.at("norm.num_batches_tracked").at("tensor_meta").at("dtype"), 5);
}

TEST_F(Pytorch, SizesAreComputed) {
  const Function function = [](const Tensors& x) {
    const int64_t batch = x[0].size(0), length = x[0].size(1);
    return Tensors{x[0].flatten(0, 1), at::cat({x[0], x[0]}, 1).view({batch, 2, length, 4}).transpose(1, 2),
                   x[0] * length + at::arange(length).unsqueeze(1), at::avg_pool1d(x[0].transpose(1, 2), 2),
                   at::ones({length / 2 * batch, 3})};
  };
  const PytorchOptions options{.output_names = {"flat", "both", "scaled", "half", "ones"},
                               .dynamic_axes = DynamicAxes{{"input", {{0, "batch"}, {1, "length"}}}}};
  expect_exact(function, {torch::randn({2, 5, 4})}, options);
  const json program = part("f.pt2", "models/model.json").at("graph_module").at("graph");
  const auto uses = [&](const std::string& target) {
    return std::any_of(program.at("nodes").begin(), program.at("nodes").end(),
                       [&](const json& node) { return node.at("target") == target; });
  };
  EXPECT_TRUE(uses("torch.ops.aten.sym_size.int"));
  EXPECT_TRUE(uses("_operator.mul"));
  EXPECT_TRUE(uses("_operator.floordiv"));
}

TEST_F(Pytorch, NumbersKeepTheDtypeOfTensors) {
  const Function function = [](const Tensors& x) {
    const at::Tensor bf16 = x[0].to(torch::kBFloat16), whole = x[0].to(torch::kInt);
    return Tensors{bf16 * 0.1,
                   1 - bf16,
                   2 / (bf16.abs() + 1),
                   whole * 3 + 1,
                   whole / 2,
                   at::where(x[0] > 0, x[0], 0.25),
                   at::pow(2, whole.abs()),
                   bf16.sum() * 0.3,
                   whole == 1,
                   at::maximum(bf16, at::scalar_tensor(0.1, torch::kFloat)),
                   0.5 * x[0].mean()};
  };
  expect_exact(function, {torch::randn({3, 4}) * 3});
}

TEST_F(Pytorch, WritesBecomeResults) {
  const Function function = [](const Tensors& x) {
    at::Tensor a = x[0].clone();
    a.slice(1, 1, 6, 2).mul_(2).add_(1);
    a.select(0, 1).fill_(3);
    at::Tensor turned = a.transpose(0, 2);
    turned.slice(0, 1, 3).relu_();
    turned.select(1, 2).copy_(at::arange(a.size(0)).expand({4, a.size(0)}));
    at::Tensor flat = at::zeros({a.size(0), 24});
    flat.view({a.size(0), 6, 4}).slice(2, 1, 3).add_(a.slice(2, 0, 2), 0.5);
    at::Tensor mask = at::zeros({6}, torch::kBool);
    mask.slice(0, 2, 4).fill_(true);
    at::Tensor counts = at::zeros({a.size(0), 6}, torch::kInt);
    counts.eq_(0).add_(mask);
    at::Tensor out = at::empty({0});
    at::add_out(out, a, a);
    a.view({a.size(0), 24}).index_put_({at::tensor({0, 1}), at::tensor({5, 7})}, at::tensor({1.5F, 2.5F}));
    return Tensors{a, turned.contiguous(), flat, mask, counts, out, a.masked_fill_(a > 1, -1).square_()};
  };
  expect_exact(function, {torch::randn({3, 6, 4})});
}

TEST_F(Pytorch, ViewsThatOverlap) {
  const Function function = [](const Tensors& x) {
    const at::Tensor image = x[0].contiguous(torch::MemoryFormat::ChannelsLast) + 1;
    return Tensors{x[0].unfold(2, 3, 1).sum(4), image.unfold(3, 2, 2) * 2, image.flatten(1), at::pixel_shuffle(x[0], 2),
                   x[0].diagonal(0, 2, 3) + 1};
  };
  expect_exact(function, {torch::randn({2, 4, 6, 6})});
}

TEST_F(Pytorch, InputsAndWeightsInOtherMemoryFormats) {
  torch::nn::Conv2d conv(3, 4, 3);
  conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  const at::Tensor wide = torch::randn({6, 10});
  const at::Tensor part = wide.slice(1, 2, 6);
  const Function function = [&](const Tensors& x) {
    return Tensors{conv(x[0]), x[0].flatten(2, 3).select(1, 0), part.t() * 2};
  };
  expect_exact(function, {torch::randn({2, 3, 5, 4}).contiguous(torch::MemoryFormat::ChannelsLast)},
               {.weights = {{"weight", conv->weight}, {"bias", conv->bias}, {"part", part}}});
  const json weights = weights_of("f.pt2");
  EXPECT_EQ(weights.at("part").at("tensor_meta").at("storage_offset").at("as_int"), 0);
}

TEST_F(Pytorch, ListsAndOptionalTensors) {
  const Function function = [](const Tensors& x) {
    const auto pieces = at::split_with_sizes_copy(x[0], {2, 4}, 1);
    const auto meshes = at::meshgrid({x[0].select(1, 0), at::arange(3, torch::kFloat)}, "ij");
    const at::Tensor index = at::tensor({2, 0, 1});
    return Tensors{pieces[1] + 1, at::stack({meshes[0], meshes[1]}), at::index(x[0], {std::nullopt, index}),
                   std::get<1>(at::topk(x[0], 2)), std::get<0>(x[0].max(1))};
  };
  expect_exact(function, {torch::randn({3, 6})});
}

TEST_F(Pytorch, TiedWeightsAreWrittenOnce) {
  const at::Tensor table = torch::randn({50, 8});
  const Function function = [&](const Tensors& x) { return Tensors{at::linear(at::embedding(table, x[0]), table)}; };
  expect_exact(function, {torch::randint(50, {2, 3})}, {.weights = {{"table", table}, {"head.weight", table}}});
  const json weights = weights_of("f.pt2");
  EXPECT_EQ(weights.at("table").at("path_name"), weights.at("head.weight").at("path_name"));
}

TEST_F(Pytorch, OmittedInputsAndSeveralOutputs) {
  const Function function = [](const Tensors& x) { return Tensors{x[2] + 1, x[0]}; };
  expect_exact(function, {torch::randn({2, 3}), at::Tensor(), torch::randn({2, 4})},
               {.input_names = {"x", "mask", "y"}, .output_names = {"sum", "same"}});
  const torch::jit::Module module = torch::jit::load(path("f.torchscript"));
  EXPECT_EQ(module.get_method("forward").function().getSchema().arguments().size(), 3u);
}

TEST_F(Pytorch, TheModelDoesNotChange) {
  const auto net = std::make_shared<PytorchNet>();
  net->train();
  export_pt2(Model::of(net), {torch::randn({2, 3, 8, 8})}, path("net.pt2"));
  EXPECT_TRUE(net->norm->is_training());
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST_F(Pytorch, TheSameExportGivesTheSameFile) {
  const auto net = std::make_shared<PytorchNet>();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  export_pt2(Model::of(net), {x}, path("a.pt2"));
  export_pt2(Model::of(net), {x}, path("b.pt2"));
  EXPECT_EQ(part("a.pt2", "models/model.json"), part("b.pt2", "models/model.json"));
}

TEST_F(Pytorch, QuantizedModelsComputeTheSameIntegers) {
  const Model model = Model::of(std::make_shared<PytorchNet>());
  model.eval();
  const std::vector<Tensors> calibration{{torch::randn({4, 3, 8, 8})}};
  const Model quantized = quant::quantize(model, {}, calibration).model;
  for (const bool pt2 : {false, true}) {
    const PytorchReport report = (pt2 ? export_pt2(quantized, {torch::randn({2, 3, 8, 8})}, path("q"))
                                      : export_torchscript(quantized, {torch::randn({2, 3, 8, 8})}, path("q")));
    EXPECT_LT(report.largest_difference, 1e-6);
    EXPECT_EQ(report.operators.at("aten::nan_to_num"), 2);
  }
  const json weights = weights_of("q");
  const auto int8 = std::count_if(weights.begin(), weights.end(),
                                  [](const json& one) { return one.at("tensor_meta").at("dtype") == 2; });
  EXPECT_EQ(int8, 2);
}

TEST_F(Pytorch, OtherMethodsOfQuantization) {
  torch::nn::Sequential net(torch::nn::Linear(32, 16), torch::nn::ReLU(), torch::nn::Linear(16, 8));
  const Model model = Model::of(net);
  const std::vector<Tensors> calibration{{torch::randn({4, 32})}};
  for (const quant::Method method : {quant::Method::dynamic, quant::Method::weight_only}) {
    for (const c10::ScalarType dtype : {torch::kFloat, torch::kBFloat16}) {
      const Model quantized = quant::quantize(model, {.method = method}, calibration).model;
      const at::Tensor x = torch::randn({2, 3, 32}).to(dtype);
      const double limit = dtype == torch::kFloat ? 1e-5 : 0.02;
      const PytorchOptions options{.dynamic_axes = DynamicAxes{{"input", {{0, "batch"}}}}};
      EXPECT_LT(export_torchscript(quantized, {x}, path("q"), options).largest_difference, limit);
      EXPECT_LT(export_pt2(quantized, {x}, path("q"), options).largest_difference, limit);
    }
  }
}

/// Small registered models. bench/export opens the files of all models in Python.
class PytorchModels : public Pytorch, public ::testing::WithParamInterface<const char*> {};

TEST_P(PytorchModels, AgreesForAllSizes) {
  const models::ModelEntry& entry = models::registry().at(GetParam());
  for (const c10::ScalarType dtype : {torch::kFloat, torch::kBFloat16}) {
    const Model model = entry.make(10, entry.input_shape[0] > 0 ? entry.input_shape[0] : 3);
    model.to(dtype);
    const bool sequence = entry.input == models::InputKind::tokens || entry.input == models::InputKind::series;
    Tensors inputs = models::example_inputs(entry, 2, sequence ? 12 : 0);
    DynamicAxes axes;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].is_floating_point()) inputs[i] = inputs[i].to(dtype);
      axes[model.inputs()[i].name] = {{0, "batch"}};
    }
    if (sequence) axes[model.inputs()[0].name][1] = "sequence";
    const double limit = dtype == torch::kFloat ? 1e-5 : 0.02;
    EXPECT_LT(export_torchscript(model, inputs, path("m.torchscript"), {.dynamic_axes = axes}).largest_difference,
              limit);
    const PytorchReport report = export_pt2(model, inputs, path("m.pt2"), {.dynamic_axes = axes});
    EXPECT_LT(report.largest_difference, limit);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PytorchModels,
                         ::testing::Values("mlp", "digits_resnet", "tabular_mlp", "bert-20m", "encoder_decoder"));

class PytorchErrors : public Pytorch {
 protected:
  auto refused(const Function& function, const PytorchOptions& options = {}) const {
    return [=, this] { export_pt2(function, {at::ones({2, 3, 4})}, path("f"), options); };
  }
  const Function identity = [](const Tensors& x) { return Tensors{x[0] + 1}; };
};

TEST_F(PytorchErrors, RandomOperators) {
  const Function function = [](const Tensors& x) { return Tensors{at::dropout(x[0], 0.5, true)}; };
  EXPECT_THAT(refused(function),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("random numbers"), HasSubstr("eval()"))));
  EXPECT_EQ(files(), 0u);
}

TEST_F(PytorchErrors, OperatorsThatPythonDoesNotHave) {
  const at::Tensor weight = at::randn({4});
  static const auto twice = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("bellows_pytorch_test::twice", "")
                                .typed<at::Tensor(const at::Tensor&)>();
  const Function function = [&](const Tensors& x) { return Tensors{x[0] + twice.call(weight)}; };
  EXPECT_THAT(
      refused(function, {.weights = {{"layer.weight", weight}}}),
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("bellows_pytorch_test::twice"),
                                           HasSubstr("does not belong to PyTorch"), HasSubstr("`layer.weight`"))));
}

TEST_F(PytorchErrors, OptionsAreChecked) {
  EXPECT_THAT(refused(identity, {.dynamic_axes = DynamicAxes{{"inputt", {{0, "batch"}}}}}),
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("export_pt2"), HasSubstr("Did you mean \"input\"?"))));
  EXPECT_THAT(refused(identity, {.sizes = {{"batch", {2, 3}}}}),
              ThrowsMessage<c10::ValueError>(HasSubstr("three different sizes")));
  for (const char* name : {"my input", "2x", "class", "a.b"})
    EXPECT_THAT(refused(identity, {.input_names = {name}}),
                ThrowsMessage<c10::ValueError>(AllOf(HasSubstr(name), HasSubstr("Python variable"))));
}

TEST_F(PytorchErrors, NamesOfWeightsThatCannotBeModules) {
  const at::Tensor a = at::randn({4}), b = at::randn({4});
  const Function function = [&](const Tensors& x) { return Tensors{x[0] + a + b}; };
  const auto exported = [&] {
    export_torchscript(function, {at::ones({2, 4})}, path("f"), {.weights = {{"w", a}, {"w.x", b}}});
  };
  EXPECT_THAT(exported, ThrowsMessage<c10::ValueError>(HasSubstr("\"w\"")));
  EXPECT_EQ(files(), 0u);
}

TEST_F(PytorchErrors, ResultsThatDependOnMoreThanTheInputs) {
  int calls = 0;  // three recordings, and a batch of 1
  const Function function = [&](const Tensors& x) { return Tensors{x[0] + (++calls > 3 ? 1 : 0)}; };
  EXPECT_THAT(refused(function), ThrowsMessage<c10::ValueError>(HasSubstr("depend on more than its inputs")));
  EXPECT_EQ(files(), 0u);
}

TEST_F(PytorchErrors, AFailedExportKeepsTheFormerFile) {
  export_pt2(identity, {at::ones({2, 3, 4})}, path("f"));
  const auto bytes = std::filesystem::file_size(path("f"));
  const Function function = [](const Tensors& x) { return Tensors{at::rand_like(x[0])}; };
  EXPECT_THAT(refused(function), ThrowsMessage<c10::ValueError>(HasSubstr("random")));
  EXPECT_EQ(std::filesystem::file_size(path("f")), bytes);
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace bellows
