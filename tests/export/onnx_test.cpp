#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "bellows/export.h"
#include "bellows/models/bert.h"
#include "bellows/quant/quantize.h"
#include "tests/export/onnx_reader.h"
#include "tests/quant/networks.h"

namespace bellows {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::OnnxFile;
using testing::read_onnx;

class Onnx : public ::testing::Test {
 protected:
  Onnx() {
    std::filesystem::create_directories(folder_);
    torch::manual_seed(1);
  }
  ~Onnx() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name = "model.onnx") const { return folder_ + "/" + name; }

 private:
  const std::string folder_ = ::testing::TempDir() + "bellows-onnx-" + std::to_string(getpid());
};

struct Net : torch::nn::Module {
  Net() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    head = register_module("head", torch::nn::Linear(4, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return head(norm(conv(x)).relu_().mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST_F(Onnx, AModelHasItsWeightsByName) {
  const auto net = std::make_shared<Net>();
  const OnnxReport report = export_onnx(Model::of(net), {torch::randn({2, 3, 8, 8})}, path());
  const OnnxFile file = read_onnx(path());
  EXPECT_EQ(file.opset, 17);
  EXPECT_EQ(file.ir_version, 8);
  ASSERT_TRUE(file.initializers.contains("conv.weight"));
  const OnnxFile::Initializer& weight = file.initializers.at("conv.weight");
  EXPECT_THAT(weight.sizes, ElementsAre(4, 3, 3, 3));
  EXPECT_EQ(std::memcmp(weight.bytes.data(), net->conv->weight.const_data_ptr(), weight.bytes.size()), 0);
  EXPECT_TRUE(file.initializers.contains("norm.running_var"));
  EXPECT_EQ(file.count("Conv"), 1);
  EXPECT_EQ(file.count("BatchNormalization"), 1);
  EXPECT_EQ(file.count("Gemm"), 1);
  EXPECT_EQ(file.nodes.size(), 5u) << report.to_text();
  EXPECT_THAT(file.nodes[0].name, ::testing::StartsWith("conv/"));
}

TEST_F(Onnx, TheDefaultAxisIsTheBatch) {
  const OnnxReport report = export_onnx(Model::of(std::make_shared<Net>()), {torch::randn({1, 3, 8, 8})}, path());
  const OnnxFile file = read_onnx(path());
  EXPECT_THAT(file.inputs[0].shape, ElementsAre("batch", "3", "8", "8"));
  EXPECT_THAT(file.outputs[0].shape, ElementsAre("batch", "5"));
  EXPECT_THAT(report.dynamic_axes.at("batch"), ElementsAre(2, 3, 5));
  ASSERT_EQ(report.fixed_axes.size(), 3u);
  EXPECT_EQ(report.fixed_axes[1].axis, 2);
  EXPECT_EQ(report.fixed_axes[1].size, 8);
}

TEST_F(Onnx, NamesAndAxesAreThoseOfTheUser) {
  const OnnxReport report =
      export_onnx(Model::of(std::make_shared<Net>()), {torch::randn({2, 3, 8, 8})}, path(),
                  {.input_names = {"image"},
                   .output_names = {"logits"},
                   .dynamic_axes = DynamicAxes{{"image", {{0, "n"}, {2, "height"}, {3, "width"}}}}});
  const OnnxFile file = read_onnx(path());
  EXPECT_EQ(file.inputs[0].name, "image");
  EXPECT_THAT(file.inputs[0].shape, ElementsAre("n", "3", "height", "width"));
  EXPECT_EQ(file.outputs[0].name, "logits");
  EXPECT_EQ(report.fixed_axes.size(), 1u);
}

TEST_F(Onnx, NoAxisVariesWithAnEmptyMap) {
  export_onnx(Model::of(std::make_shared<Net>()), {torch::randn({1, 3, 8, 8})}, path(),
              {.dynamic_axes = DynamicAxes{}});
  EXPECT_THAT(read_onnx(path()).inputs[0].shape, ElementsAre("1", "3", "8", "8"));
}

TEST_F(Onnx, SizesBecomeExpressions) {
  const OnnxFunction function = [](const std::vector<at::Tensor>& x) {
    const at::Tensor both = at::cat({x[0], x[0]}, 1);
    return std::vector<at::Tensor>{both, x[0].flatten(0, 1), x[0] / static_cast<double>(x[0].dim())};
  };
  export_onnx(function, {torch::randn({2, 3, 4})}, path(),
              {.output_names = {"both", "flat", "third"},
               .dynamic_axes = DynamicAxes{{"input", {{0, "batch"}, {1, "length"}}}}});
  const OnnxFile file = read_onnx(path());
  EXPECT_THAT(file.outputs[0].shape, ElementsAre("batch", "2*length", "4"));
  EXPECT_THAT(file.outputs[1].shape, ElementsAre("batch*length", "4"));
}

TEST_F(Onnx, NumbersThatFollowSizesAreComputed) {
  const OnnxFunction function = [](const std::vector<at::Tensor>& x) {
    return std::vector<at::Tensor>{x[0] * x[0].size(0) + at::arange(x[0].size(0)).unsqueeze(1)};
  };
  export_onnx(function, {torch::randn({2, 3})}, path());
  const OnnxFile file = read_onnx(path());
  EXPECT_GE(file.count("Shape"), 1);
  EXPECT_EQ(file.count("Range"), 1);
}

TEST_F(Onnx, LinearsOfSequencesNeedNoReshape) {
  torch::nn::Linear linear(4, 6);
  const OnnxFunction function = [&](const std::vector<at::Tensor>& x) { return std::vector<at::Tensor>{linear(x[0])}; };
  export_onnx(function, {torch::randn({2, 3, 4})}, path(),
              {.weights = {{"weight", linear->weight}, {"bias", linear->bias}}});
  const OnnxFile file = read_onnx(path());
  EXPECT_EQ(file.count("Reshape"), 0);
  EXPECT_EQ(file.count("MatMul"), 1);
  EXPECT_TRUE(file.initializers.contains("weight"));
}

TEST_F(Onnx, WritesToPartsOfTensors) {
  const OnnxFunction function = [](const std::vector<at::Tensor>& x) {
    at::Tensor y = at::zeros({x[0].size(0), 6, 2});
    y.slice(1, 1, 4).copy_(x[0]);
    y.select(1, 5).fill_(3);
    return std::vector<at::Tensor>{y};
  };
  export_onnx(function, {torch::randn({2, 3, 2})}, path());
  EXPECT_GE(read_onnx(path()).count("Concat"), 2);
}

TEST_F(Onnx, LargeWeightsGoToASecondFile) {
  const auto linear = std::make_shared<torch::nn::LinearImpl>(64, 64);
  const OnnxReport report =
      export_onnx(Model::of(linear), {torch::randn({2, 64})}, path(), {.external_data_above = 1000});
  EXPECT_EQ(report.data_file, path() + ".data");
  EXPECT_EQ(report.data_bytes, std::filesystem::file_size(report.data_file));
  const OnnxFile file = read_onnx(path());
  const OnnxFile::Initializer& weight = file.initializers.at("weight");
  EXPECT_TRUE(weight.external);
  EXPECT_EQ(weight.location, "model.onnx.data");
  EXPECT_EQ(std::memcmp(weight.bytes.data(), linear->weight.const_data_ptr(), weight.bytes.size()), 0);
  EXPECT_FALSE(file.initializers.at("bias").external);  // small
}

TEST_F(Onnx, Bf16WeightsAreStoredAsBf16) {
  const auto linear = std::make_shared<torch::nn::LinearImpl>(8, 8);
  linear->to(torch::kBFloat16);
  const OnnxReport report = export_onnx(Model::of(linear), {torch::randn({2, 8}).to(torch::kBFloat16)}, path());
  EXPECT_EQ(read_onnx(path()).initializers.at("weight").element_type, 16);
  EXPECT_EQ(report.inputs[0].dtype, "float32");
}

TEST_F(Onnx, Fp16StaysFp16) {
  const auto linear = std::make_shared<torch::nn::LinearImpl>(8, 8);
  linear->to(torch::kHalf);
  const OnnxReport report = export_onnx(Model::of(linear), {torch::randn({2, 8}).to(torch::kHalf)}, path());
  EXPECT_EQ(read_onnx(path()).initializers.at("weight").element_type, 10);
  EXPECT_EQ(report.inputs[0].dtype, "float16");
}

TEST_F(Onnx, QuantizedAttentionIsWrittenWithIntegers) {
  torch::manual_seed(6);
  models::BertOptions options;
  options.vocab_size = 50, options.hidden_size = 64, options.intermediate_size = 128;
  options.num_hidden_layers = 1, options.num_attention_heads = 2;
  options.mask_padding = false;
  const Model model = models::bert(options);
  model.eval();
  const at::Tensor ids = torch::randint(1, 50, {2, 12}, at::kLong);
  const std::vector<std::vector<at::Tensor>> calibration{{ids}};
  const quant::Quantized quantized = quant::quantize(model, {}, calibration);
  export_onnx(quantized.model, {ids}, path());
  const OnnxFile file = read_onnx(path());
  EXPECT_EQ(file.count("Softmax"), 1);
  EXPECT_GE(file.count("QuantizeLinear"), 3) << "query, key and value";
}

TEST_F(Onnx, QuantizedModelsHaveQuantizeAndDequantizeNodes) {
  const Model model = Model::of(std::make_shared<Net>());
  model.eval();
  const std::vector<std::vector<at::Tensor>> calibration{{torch::randn({4, 3, 8, 8})}};
  const Model quantized = quant::quantize(model, {}, calibration).model;
  export_onnx(quantized, {torch::randn({2, 3, 8, 8})}, path());
  const OnnxFile file = read_onnx(path());
  EXPECT_EQ(file.count("QuantizeLinear"), 2);
  EXPECT_EQ(file.count("DequantizeLinear"), 4);
  const auto int8 = std::count_if(file.initializers.begin(), file.initializers.end(), [](const auto& one) {
    return one.second.element_type == 3 && one.second.sizes.size() > 1;
  });
  EXPECT_EQ(int8, 2);
}

TEST_F(Onnx, QuantizedEmbeddingsStayIntegers) {
  const auto net = quant::samples::Text();
  const Model quantized = quant::quantize(quant::samples::model_of(net), {}, quant::samples::texts()).model;
  export_onnx(quantized, {quant::samples::texts()[0][0]}, path());
  const OnnxFile file = read_onnx(path());
  EXPECT_GE(file.count("Gather"), 2);
  const auto has = [&](int element_type, std::vector<int64_t> sizes) {
    return std::any_of(file.initializers.begin(), file.initializers.end(), [&](const auto& one) {
      return one.second.element_type == element_type && one.second.sizes == sizes;
    });
  };
  constexpr int fp32 = 1, int8 = 3;
  EXPECT_TRUE(has(int8, {50, 32}));
  EXPECT_TRUE(has(fp32, {50, 1}));
  EXPECT_FALSE(has(fp32, {50, 32}));
}

TEST_F(Onnx, FourBitEmbeddingsHaveTwoIntegersPerByte) {
  const auto net = quant::samples::Text();
  const quant::Options options{
      .method = quant::Method::weight_only, .weights = quant::group_scheme(4, 16), .skip = {"inner", "head"}};
  const Model quantized = quant::quantize(quant::samples::model_of(net), options, quant::samples::texts()).model;
  export_onnx(quantized, {quant::samples::texts()[0][0]}, path());
  const OnnxFile file = read_onnx(path());
  const auto words = std::find_if(file.initializers.begin(), file.initializers.end(), [](const auto& one) {
    constexpr int uint8 = 2;
    return one.second.element_type == uint8 && one.second.sizes == std::vector<int64_t>{50, 16};
  });
  EXPECT_NE(words, file.initializers.end());
}

TEST_F(Onnx, TheModelDoesNotChange) {
  const auto net = std::make_shared<Net>();
  net->train();
  export_onnx(Model::of(net), {torch::randn({2, 3, 8, 8})}, path());
  EXPECT_TRUE(net->norm->is_training());
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST_F(Onnx, TheSameExportGivesTheSameFile) {
  const auto net = std::make_shared<Net>();
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  export_onnx(Model::of(net), {x}, path("a.onnx"));
  export_onnx(Model::of(net), {x}, path("b.onnx"));
  EXPECT_EQ(std::filesystem::file_size(path("a.onnx")), std::filesystem::file_size(path("b.onnx")));
}

}  // namespace
}  // namespace bellows
