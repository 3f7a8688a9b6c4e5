// Compiled functions of quantized models: int8 primitives against the reference operators.
#include <gmock/gmock.h>

#include <cmath>

#include "bellows/compile.h"
#include "bellows/kernels/int8_linear.h"
#include "bellows/quant/operators.h"
#include "bellows/quant/quantize.h"
#include "tests/compile/onednn_support.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// The text of a program with this kernel, if the processor has instructions for it.
std::string convolution(const std::string& fused) {
  return adds_int8_exactly() ? fused : "bellows::quantized_convolution";
}
std::string attention() {
  return kernels::has_fast_int8_linear() ? "int8 attention" : "bellows::quantized_attention";
}

struct IntegerLayer {
  quant::QuantizedInput input;
  at::Tensor weight, scale, bias;

  std::vector<at::Tensor> constants() const {
    std::vector<at::Tensor> all{input.scale, input.zero_point, weight, scale};
    if (bias.defined()) all.push_back(bias);
    return all;
  }
};

IntegerLayer random_integer_layer(at::IntArrayRef weight, bool has_zero_point, bool has_bias) {
  return {.input = {.scale = torch::tensor(0.02F), .zero_point = torch::tensor(has_zero_point ? 117 : 0, torch::kInt)},
          .weight = torch::randint(-128, 128, weight, torch::kChar),
          .scale = torch::rand({weight[0]}) * 0.01 + 0.001,
          .bias = has_bias ? torch::randn({weight[0]}) : at::Tensor()};
}

/// The results of a compiled function, which must use `expected`, next to the eager ones.
void expect_equal(const std::function<at::Tensor(const at::Tensor&)>& function, std::vector<at::Tensor> constants,
                  const at::Tensor& x, const std::string& expected, double tolerance = 2e-6) {
  const torch::NoGradGuard no_gradients;
  const auto compiled = compile(function, {.frozen = std::move(constants), .always = true});
  compiled(x);
  const at::Tensor got = compiled(x), eager = function(x);
  ASSERT_EQ(got.sizes(), eager.sizes());
  ASSERT_EQ(got.strides(), eager.strides());
  const at::Tensor error = (got.to(at::kDouble) - eager.to(at::kDouble)).abs();
  if (eager.is_floating_point()) {
    EXPECT_LE(error.max().item<double>(), tolerance * eager.abs().max().item<double>());
  } else {  // values close to a half may be rounded to either side
    EXPECT_LE(error.max().item<double>(), 1);
    EXPECT_LE(error.mean().item<double>(), 1e-3);
  }
  EXPECT_THAT(compiled.explain().to_text(), HasSubstr(expected));
}

TEST(QuantizedPrograms, Linears) {
  torch::manual_seed(1);
  for (const auto& [rows, inner, columns] : std::vector<std::array<int64_t, 3>>{
           {1, 64, 64}, {14, 768, 96}, {128, 100, 33}, {3, 17, 5}, {2, 3072, 10}, {64, 1, 64}}) {
    for (const bool zero_point : {false, true}) {
      for (const bool is_signed : {false, true}) {
        const IntegerLayer layer = random_integer_layer({columns, inner}, zero_point, rows % 2 == 0);
        const auto function = [=](const at::Tensor& x) {
          quant::QuantizedInput input = layer.input;
          input.values = quant::quantize_activations(x, input.scale, input.zero_point, is_signed);
          return quant::quantized_linear(input, layer.weight, layer.scale, layer.bias);
        };
        SCOPED_TRACE(c10::str(rows, " x ", inner, " x ", columns, " zero point ", zero_point, " signed ", is_signed));
        expect_equal(function, layer.constants(), torch::randn({rows, inner}), "int8 linear");
      }
    }
  }
}

TEST(QuantizedPrograms, LinearsTakeWhatFollows) {
  torch::manual_seed(2);
  const IntegerLayer layer = random_integer_layer({48, 64}, true, false),
                     next = random_integer_layer({20, 48}, true, true);
  const at::Tensor vector = torch::randn({48}), other = torch::randn({2, 7, 48});
  std::vector<at::Tensor> constants = layer.constants();
  for (const at::Tensor& tensor : next.constants()) constants.push_back(tensor);
  constants.push_back(vector);
  const auto first = [=](const at::Tensor& x) {
    quant::QuantizedInput input = layer.input;
    input.values = quant::quantize_activations(x, input.scale, input.zero_point, false);
    return quant::quantized_linear(input, layer.weight, layer.scale, {});
  };
  const at::Tensor x = torch::randn({2, 7, 64});
  expect_equal([=](const at::Tensor& y) { return torch::gelu(first(y) + vector); }, constants, x, "int8 linear gelu",
               1e-5);
  expect_equal([=](const at::Tensor& y) { return torch::relu((first(y) + vector) + other); }, constants, x,
               "int8 linear add relu");
  const auto chain = [=](const at::Tensor& y) {
    quant::QuantizedInput input = next.input;
    input.values = quant::quantize_activations(torch::relu(first(y) + vector), input.scale, input.zero_point, false);
    return quant::quantized_linear(input, next.weight, next.scale, next.bias);
  };
  // A value that is rounded to the other side changes a result by one step of the weight.
  expect_equal(chain, constants, x, "int8 linear relu quantize", 5e-3);
}

TEST(QuantizedPrograms, Convolutions) {
  torch::manual_seed(3);
  struct Case {
    std::vector<int64_t> image, weight;
    int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  };
  for (const Case& one : {Case{{2, 16, 9, 7}, {32, 16, 3, 3}, 1, 1}, Case{{1, 3, 33, 31}, {64, 3, 7, 7}, 2, 3},
                          Case{{3, 17, 5, 6}, {19, 17, 1, 1}}, Case{{2, 32, 9, 9}, {64, 8, 3, 3}, 1, 1, 1, 4},
                          Case{{2, 32, 9, 10}, {32, 1, 3, 3}, 1, 1, 1, 32},
                          Case{{2, 16, 15, 15}, {16, 16, 3, 3}, 1, 2, 2}, Case{{1, 8, 6, 6}, {10, 8, 2, 2}, 2}}) {
    for (const bool is_signed : {false, true}) {
      const IntegerLayer layer = random_integer_layer(one.weight, false, one.stride == 1);
      const quant::ConvolutionArguments arguments{.stride = {one.stride, one.stride},
                                                  .padding = {one.padding, one.padding},
                                                  .dilation = {one.dilation, one.dilation},
                                                  .groups = one.groups};
      const auto convolve = [=](const at::Tensor& x) {
        quant::QuantizedInput input = layer.input;
        input.values = quant::quantize_activations(x, input.scale, input.zero_point, is_signed);
        return quant::quantized_convolution(input, layer.weight, layer.scale, layer.bias, arguments);
      };
      SCOPED_TRACE(c10::str(at::IntArrayRef(one.weight), " signed ", is_signed));
      const at::Tensor x = torch::rand(one.image) * 5 - (is_signed ? 2.5 : 0);
      expect_equal(convolve, layer.constants(), x, convolution("int8 convolution"));
      const at::Tensor step = torch::tensor(0.05F), zero = torch::tensor(0, torch::kInt);
      std::vector<at::Tensor> constants = layer.constants();
      constants.insert(constants.end(), {step, zero});
      const at::Tensor other = torch::randn_like(convolve(x));
      const auto block = [=](const at::Tensor& y) {
        return quant::quantize_activations(torch::relu(convolve(y) + other), step, zero, false);
      };
      expect_equal(block, constants, x, convolution("int8 convolution add relu quantize"));
    }
  }
}

TEST(QuantizedPrograms, SumsOfIntegers) {
  torch::manual_seed(5);
  const quant::ConvolutionArguments arguments{.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}};
  for (const bool is_signed : {false, true}) {
    for (const int64_t channels : {16, 19}) {
      SCOPED_TRACE(c10::str(channels, " channels, signed ", is_signed));
      const IntegerLayer first = random_integer_layer({32, channels, 3, 3}, false, true),
                         second = random_integer_layer({channels, 32, 3, 3}, false, true);
      std::vector<at::Tensor> constants = first.constants();
      for (const at::Tensor& tensor : second.constants()) constants.push_back(tensor);
      const at::Tensor step = torch::tensor(0.05F), zero = torch::tensor(0, torch::kInt);
      constants.insert(constants.end(), {step, zero});
      const auto sum = [=](const at::Tensor& x) {
        quant::QuantizedInput shortcut = first.input, between = second.input;
        shortcut.values = quant::quantize_activations(x, shortcut.scale, shortcut.zero_point, is_signed);
        const at::Tensor y = quant::quantized_convolution(shortcut, first.weight, first.scale, first.bias, arguments);
        between.values = quant::quantize_activations(torch::relu(y), between.scale, between.zero_point, false);
        const at::Tensor z = quant::quantized_convolution(between, second.weight, second.scale, second.bias, arguments);
        return torch::relu(z.add_(quant::dequantize_activations(shortcut)));
      };
      const at::Tensor x = torch::rand({2, channels, 9, 7}) * 5 - (is_signed ? 2.5 : 0);
      expect_equal(sum, constants, x, convolution("int8 convolution add int8 relu "));
      const auto quantized = [=](const at::Tensor& y) {
        return quant::quantize_activations(sum(y), step, zero, false);
      };
      expect_equal(quantized, constants, x, convolution("int8 convolution add int8 relu quantize"));
      const auto twice = [=](const at::Tensor& y) {  // the shortcut is also a result, so it must exist as fp32
        quant::QuantizedInput shortcut = first.input;
        shortcut.values = quant::quantize_activations(y, shortcut.scale, shortcut.zero_point, is_signed);
        const at::Tensor values = quant::dequantize_activations(shortcut);
        return quant::quantized_convolution(shortcut, first.weight, first.scale, {}, arguments).sum(1, true) + values;
      };
      expect_equal(twice, constants, x, "dequantize", 1e-5);
    }
  }
}

TEST(QuantizedPrograms, PoolingOfIntegers) {
  torch::manual_seed(6);
  const IntegerLayer layer = random_integer_layer({32, 16, 3, 3}, false, true);
  const at::Tensor step = torch::tensor(0.05F), other = torch::randn({2, 32, 11, 10});
  const quant::ConvolutionArguments arguments{.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}};
  for (const int32_t zero_point : {0, 3}) {
    for (const bool is_signed : {false, true}) {
      const at::Tensor zero = torch::tensor(zero_point, torch::kInt);
      std::vector<at::Tensor> constants = layer.constants();
      constants.insert(constants.end(), {step, zero});
      const auto convolve = [=](const at::Tensor& x) {
        quant::QuantizedInput input = layer.input;
        input.values = quant::quantize_activations(x, input.scale, input.zero_point, false);
        return quant::quantized_convolution(input, layer.weight, layer.scale, layer.bias, arguments);
      };
      const at::Tensor x = torch::rand({2, 16, 11, 10}) * 5;
      for (const int64_t padding : {0, 1}) {
        SCOPED_TRACE(c10::str("zero point ", zero_point, " signed ", is_signed, " padding ", padding));
        const auto pooled = [=](const at::Tensor& y) {
          const at::Tensor z = torch::max_pool2d(is_signed ? convolve(y) : torch::relu(convolve(y)), 3, 2, padding);
          return quant::quantize_activations(z, step, zero, is_signed);
        };
        expect_equal(pooled, constants, x, convolution("pooling jit_int"));
      }
      // fp32 operands may be NaN, which the maximum of integers would lose.
      const auto with_sum = [=](const at::Tensor& y) {
        return quant::quantize_activations(torch::max_pool2d(convolve(y) + other, 3, 2, 1), step, zero, is_signed);
      };
      expect_equal(with_sum, constants, x, convolution("pooling jit:"));
    }
  }
}

TEST(QuantizedPrograms, ValuesThatAreNotNumbers) {
  const at::Tensor step = torch::tensor(0.5F), zero = torch::tensor(3, torch::kInt);
  const at::Tensor x = torch::tensor({NAN, INFINITY, -INFINITY, 1e30F, -1e30F, 0.0F, 0.25F, 0.75F, -0.25F, 300.0F});
  for (const bool is_signed : {false, true}) {
    const auto function = [=](const at::Tensor& y) {
      return quant::quantize_activations(y * 1, step, zero, is_signed);
    };
    const auto compiled = compile(function, {.frozen = std::vector<at::Tensor>{step, zero}, .always = true});
    compiled(x);
    EXPECT_TRUE(compiled(x).equal(function(x))) << compiled(x) << function(x);
    EXPECT_EQ(function(x)[0].item<int>(), is_signed ? -128 : 0);
    EXPECT_EQ(function(x)[1].item<int>(), is_signed ? 127 : 255);
    EXPECT_THAT(compiled.explain().to_text(), HasSubstr("quantize"));
  }
}

TEST(QuantizedPrograms, SumsKeepWhatIsNotANumber) {
  const IntegerLayer layer = random_integer_layer({16, 16}, false, false);
  at::Tensor other = torch::randn({4, 16});
  other[1][2] = NAN;
  const auto function = [=](const at::Tensor& x) {
    quant::QuantizedInput input = layer.input;
    input.values = quant::quantize_activations(x, input.scale, input.zero_point, false);
    return torch::relu(quant::quantized_linear(input, layer.weight, layer.scale, {}) + other);
  };
  const auto compiled = compile(function, {.frozen = layer.constants(), .always = true});
  const at::Tensor x = torch::rand({4, 16});
  compiled(x);
  EXPECT_TRUE(compiled(x).isnan().equal(function(x).isnan()));
  EXPECT_EQ(compiled(x).isnan().sum().item<int>(), 1);
  EXPECT_THAT(compiled.explain().to_text(), HasSubstr("int8 linear add relu"));
}

/// Dense residuals: the second sum adds fp32 values to a layer that has already added integers.
TEST(QuantizedPrograms, SumsOfIntegersAndThenOfFp32) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      for (const char* name : {"a", "b", "d"})
        register_module(name, torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1)));
    }
    at::Tensor run(const char* name, const at::Tensor& x) {
      return named_children()[name]->as<torch::nn::Conv2d>()->forward(x);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = run("a", x).relu(), z = run("b", y);
      return run("d", z) + z + y.sigmoid();
    }
  };
  torch::manual_seed(8);
  const auto net = std::make_shared<NetImpl>();
  const Model model("net", net, [net](const at::Tensor& x) { return net->forward(x); });
  const at::Tensor x = torch::randn({2, 8, 12, 12});
  const quant::Quantized made = quant::quantize(model, {}, std::vector<std::vector<at::Tensor>>{{x}});
  const auto forward = [&](const at::Tensor& in) { return made.model.forward(in); };
  const auto compiled = compile(forward, {.frozen = made.model, .always = true});
  compiled(x);
  const at::Tensor eager = forward(x);
  EXPECT_LT((compiled(x) - eager).abs().max().item<float>(), 0.02 * eager.abs().max().item<float>())
      << compiled.explain().to_text();
}

TEST(QuantizedPrograms, Attention) {
  torch::manual_seed(9);
  const at::Tensor scale = torch::tensor(0.03F), other_scale = torch::tensor(0.02F);
  for (const auto& [batch, heads, rows, keys, width] : std::vector<std::array<int64_t, 5>>{
           {1, 12, 14, 14, 64}, {2, 3, 128, 128, 64}, {1, 2, 5, 33, 20}, {3, 1, 1, 7, 3}}) {
    for (const std::optional<double> factor : {std::optional<double>(), std::optional<double>(0.3)}) {
      SCOPED_TRACE(c10::str(rows, " rows, ", keys, " keys, width ", width));
      const at::Tensor key = torch::randn({batch, keys, heads, width}).transpose(1, 2),
                       value = torch::randn({batch, heads, keys, width});
      const auto function = [=, batch = batch, heads = heads, rows = rows, width = width](const at::Tensor& x) {
        const quant::AttentionOperands operands{.query = x.view({batch, rows, heads, width}).transpose(1, 2),
                                                .key = key,
                                                .value = value,
                                                .query_scale = scale,
                                                .key_scale = scale,
                                                .value_scale = other_scale};
        return quant::quantized_attention(operands, factor);
      };
      // A power close to a half may be rounded to the other side, which moves a result by at most 1/255 of the range.
      expect_equal(function, {scale, other_scale}, torch::randn({batch, rows, heads * width}), attention(), 4e-3);
    }
  }
}

/// The words of a text, with attention whose operands are results of linears.
struct AttendingNetImpl : torch::nn::Module {
  AttendingNetImpl() {
    for (const char* name : {"query", "key", "value", "output"})
      register_module(name, torch::nn::Linear(torch::nn::LinearOptions(32, 32)));
  }
  at::Tensor run(const char* name, const at::Tensor& x) {
    auto* const layer = named_children()[name]->as<torch::nn::Linear>();
    return at::linear(x, layer->weight, layer->bias);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](const char* name) {
      return run(name, x).view({x.size(0), x.size(1), 4, 8}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(heads("query"), heads("key"), heads("value"));
    return run("output", y.transpose(1, 2).reshape(x.sizes()));
  }
};

TEST(QuantizedPrograms, ModelsWithAttention) {
  torch::manual_seed(10);
  const auto net = std::make_shared<AttendingNetImpl>();
  const Model model("net", net, [net](const at::Tensor& x) { return net->forward(x); });
  const at::Tensor x = torch::randn({2, 20, 32});
  const auto made = quant::quantize(model, {.quantize_attention = true}, std::vector<std::vector<at::Tensor>>{{x}});
  const auto forward = [&](const at::Tensor& in) { return made.model.forward(in); };
  const auto compiled = compile(forward, {.frozen = made.model, .always = true});
  compiled(x);
  const at::Tensor eager = forward(x);
  EXPECT_LT((compiled(x) - eager).abs().max().item<float>(), 0.02 * eager.abs().max().item<float>());
  const auto text = compiled.explain().to_text();
  EXPECT_THAT(text, HasSubstr(attention()));
  EXPECT_THAT(text, Not(HasSubstr("flash_attention")));
}

TEST(QuantizedPrograms, OtherModesAreBitIdentical) {
  torch::manual_seed(4);
  const torch::nn::Sequential net(torch::nn::Linear(32, 48), torch::nn::GELU(), torch::nn::Linear(48, 8));
  const auto& module = net.ptr();
  const Model model("net", module, [module](const at::Tensor& x) { return module->forward(x); });
  const std::vector<std::vector<at::Tensor>> batches{{torch::randn({16, 32})}};
  for (const quant::Method method : {quant::Method::static_range, quant::Method::dynamic, quant::Method::weight_only}) {
    const quant::Quantized made = quant::quantize(model, {.method = method}, batches);
    const auto forward = [&](const at::Tensor& x) { return made.model.forward(x); };
    const at::Tensor x = torch::randn({4, 32}), eager = forward(x);
    for (const CompileOptions& options : {CompileOptions{.generate = false}, CompileOptions{.exact = true}}) {
      const auto compiled = compile(forward, options);
      compiled(x);
      EXPECT_TRUE(compiled(x).equal(eager)) << quant::name_of(method);
    }
    const auto fast = compile(forward, {.frozen = made.model, .always = true});
    fast(x);
    EXPECT_LT((fast(x) - eager).abs().max().item<float>(), 0.02 * eager.abs().max().item<float>());
    EXPECT_EQ(fast(torch::randn({9, 32})).size(0), 9);
    const auto text = fast.explain().to_text();
    EXPECT_THAT(text, HasSubstr(method == quant::Method::weight_only ? "weight_only_linear" : "int8 linear"));
    EXPECT_THAT(text, Not(HasSubstr("bellows::quantized_linear")));
  }
}

}  // namespace
}  // namespace bellows::compile_detail::testing
