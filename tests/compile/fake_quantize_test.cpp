// Compiled quantization-aware training: generated code against libtorch's kernels, and the layout of images.
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "bellows/compile.h"
#include "bellows/quant/training/fake_quantizer.h"
#include "bellows/quant/training/range_operators.h"
#include "tests/compile/onednn_support.h"

namespace bellows::compile_detail::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Function = std::function<Tensors(const at::Tensor&)>;

/// Values for which rounding and conversion to integers have special cases, and random ones.
at::Tensor difficult_values(at::IntArrayRef shape) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special{0,     -0.F,   0.125F,   0.375F,    -0.125F, -0.375F, 31.875F, 32,
                                   -32,   1e-30F, -1e-40F,  1e9F,      -1e9F,   1e18F,   2.4e18F, -1e30F,
                                   3e38F, NAN,    infinity, -infinity, 63.75F,  63.875F, 63.88F,  -31.9F};
  at::Tensor all = torch::randn(shape) * 20;
  all.view({-1}).narrow(0, 0, static_cast<int64_t>(special.size())).copy_(torch::tensor(special));
  return all;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.strides() != b.strides()) return false;
  return a.is_floating_point() ? a.view(at::kInt).equal(b.view(at::kInt)) : a.equal(b);
}

/// The compiled function must run the operator in generated code, and return the bits of the eager one.
std::string expect_bits(const Function& function, const at::Tensor& x) {
  const auto compiled = compile(function, {.always = true});
  const Tensors eager = function(x);
  for (int call = 0; call < 3; ++call) {
    const Tensors got = compiled(x);
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(got[i], eager[i])) << "result " << i;
  }
  return compiled.explain().to_text();
}

TEST(FakeQuantizePrograms, TensorsHaveTheSameBits) {
  torch::manual_seed(1);
  for (const auto& [low, high, zero] :
       std::vector<std::array<int64_t, 3>>{{0, 255, 0}, {0, 255, 128}, {0, 255, 255}, {-128, 127, 0}, {-8, 7, 3}}) {
    for (const float scale : {0.25F, 0.1F, 3e-38F, 1e30F}) {
      for (const int64_t enabled : {1, 0}) {
        SCOPED_TRACE(c10::str(low, " ", high, " ", zero, " ", scale, " ", enabled));
        const at::Tensor step = torch::tensor(scale), zero_point = torch::tensor(static_cast<int>(zero), torch::kInt),
                         on = torch::full({1}, enabled, torch::kLong);
        const auto function = [=](const at::Tensor& x) -> Tensors {
          const auto [y, mask] =
              at::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, step, zero_point, on, low, high);
          return {y, mask};
        };
        EXPECT_THAT(expect_bits(function, difficult_values({5, 67})), Not(HasSubstr("aten::_fake_quantize")));
      }
    }
  }
}

TEST(FakeQuantizePrograms, ChannelsHaveTheSameBits) {
  torch::manual_seed(2);
  const at::Tensor x = difficult_values({6, 5, 3, 4});
  for (int64_t axis = 0; axis < 4; ++axis) {
    SCOPED_TRACE(axis);
    const at::Tensor scale = torch::rand({x.size(axis)}) + 0.01,
                     zero_point = torch::randint(-5, 5, {x.size(axis)}, torch::kInt);
    const auto function = [=](const at::Tensor& values) -> Tensors {
      const auto [y, mask] = at::fake_quantize_per_channel_affine_cachemask(values, scale, zero_point, axis, -128, 127);
      return {y, mask};
    };
    EXPECT_THAT(expect_bits(function, x), Not(HasSubstr("aten::fake_quantize")));
  }
}

/// With these zero points, libtorch rounds after the addition.
TEST(FakeQuantizePrograms, ZeroPointsWithFractionsRunOnLibtorch) {
  const at::Tensor scale = torch::rand({6}) + 0.01, zero_point = torch::rand({6}) * 9;
  const auto function = [=](const at::Tensor& x) -> Tensors {
    const auto [y, mask] = at::fake_quantize_per_channel_affine_cachemask(x, scale, zero_point, 0, -128, 127);
    return {y, mask};
  };
  EXPECT_THAT(expect_bits(function, difficult_values({6, 50})), HasSubstr("aten::fake_quantize"));
}

TEST(FakeQuantizePrograms, RangesAndGradientsHaveTheSameBits) {
  torch::manual_seed(3);
  const auto function = [](const at::Tensor& values) -> Tensors {
    const at::Tensor x = values.detach().requires_grad_();
    const auto [low, high] = values.aminmax();
    const auto [lows, highs] = values.aminmax(1);
    const at::Tensor scale = (high - low) / 255;
    const at::Tensor y = at::fake_quantize_per_tensor_affine(x, scale, torch::full({}, 128, torch::kInt), 0, 200);
    (y * values).sum().backward();
    return {low, high, lows, highs, at::isinf(values), at::full_like(scale, 7, at::kInt), y.detach(), x.grad()};
  };
  for (const at::IntArrayRef shape : {at::IntArrayRef{3, 50}, at::IntArrayRef{200, 300}}) {
    const std::string text = expect_bits(function, torch::randn(shape));
    for (const char* name : {"aten::aminmax", "aten::isinf", "aten::full_like", "aten::_fake_quantize"})
      EXPECT_THAT(text, Not(HasSubstr(name)));
    at::Tensor values = torch::randn(shape);
    values[1][2] = NAN;
    values[2][1] = -INFINITY;
    expect_bits(
        [](const at::Tensor& x) -> Tensors {
          const auto [low, high] = x.aminmax(1);
          return {low.nan_to_num(77), high.nan_to_num(77), at::isinf(x)};
        },
        values);
  }
}

/// Ranges as they occur in training: of one sign, of both, of zeros, not seen yet, and not finite.
std::vector<std::array<float, 2>> ranges() {
  const float infinity = std::numeric_limits<float>::infinity();
  return {
      {0, 6},         {-1, 3},        {-3, -1}, {0.5F, 0.7F}, {0, 0},         {-1e-30F, 1e-30F}, {infinity, -infinity},
      {-1, infinity}, {-infinity, 1}, {NAN, 1}, {-1, NAN},    {-2.5F, 2.49F}, {-3e38F, 3e38F}};
}

TEST(FakeQuantizePrograms, ParametersHaveTheSameBits) {
  for (const auto& [low, high] : ranges()) {
    for (const bool centered : {false, true}) {
      SCOPED_TRACE(c10::str(low, " ", high, " ", centered));
      const auto function = [=](const at::Tensor& range) -> Tensors {
        const quant::Parameters made = quant::range_parameters(range, centered);
        return {made.scale.nan_to_num(-5), made.zero_point};
      };
      EXPECT_THAT(expect_bits(function, torch::tensor({low, high})), Not(HasSubstr("bellows::range_parameters")));
    }
  }
}

TEST(FakeQuantizePrograms, MovingRangesHaveTheSameBits) {
  torch::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [low, high] : ranges()) {
      SCOPED_TRACE(c10::str(low, " ", high, " ", type));
      const at::Tensor range = torch::tensor({low, high});
      const auto function = [=](const at::Tensor& x) -> Tensors {
        return {quant::moving_range(range, x, 0.01).nan_to_num(-5)};
      };
      for (const at::IntArrayRef shape : {at::IntArrayRef{70}, at::IntArrayRef{4, 3, 50, 60}}) {
        at::Tensor x = torch::randn(shape).to(type);
        EXPECT_THAT(expect_bits(function, x), Not(HasSubstr("bellows::moving_range")));
        x.view({-1})[3] = NAN;
        expect_bits(function, x);
      }
    }
  }
}

TEST(FakeQuantizePrograms, ParametersOfRowsHaveTheSameBits) {
  torch::manual_seed(6);
  const auto function = [](const at::Tensor& weight) -> Tensors {
    const quant::Parameters made = quant::row_parameters(weight, 127.5);
    return {made.scale, made.zero_point};
  };
  for (const at::IntArrayRef shape : {at::IntArrayRef{7, 33}, at::IntArrayRef{16, 8, 3, 3}}) {
    at::Tensor weight = torch::randn(shape);
    weight[1].zero_();
    weight[2].abs_();
    EXPECT_THAT(expect_bits(function, weight), Not(HasSubstr("bellows::row_parameters")));
    if (shape.size() == 4) expect_bits(function, weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

/// Losses of a few steps. In the compiled function, the weights and images of each call are fake-quantized in loops.
TEST(FakeQuantizePrograms, ImagesStayInOrder) {
  const auto course = [](bool compiled, std::string& text) {
    torch::manual_seed(4);
    torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1)), torch::nn::ReLU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 16, 3).padding(1)), torch::nn::ReLU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 4, 3).padding(1)));
    const Model model = Model::of(net);
    model.train();
    const quant::FakeQuantizer quantizer(model);
    const at::Tensor image = torch::randn({4, 3, 16, 16});
    const std::function<at::Tensor(const at::Tensor&)> body = [&](const at::Tensor& x) {
      const quant::FakeQuantizerGuard guard(quantizer);
      const at::Tensor loss = net->forward(x).square().mean();
      loss.backward();
      const at::NoGradGuard no_gradients;
      for (at::Tensor& p : net->parameters()) {
        p.sub_(p.grad() * 0.1);
        p.mutable_grad() = at::Tensor();
      }
      return loss.detach();
    };
    const auto step = compile(body, {.always = true});
    std::vector<double> losses;
    for (int call = 0; call < 6; ++call) losses.push_back((compiled ? step(image) : body(image)).item<double>());
    text = step.explain().to_text();
    return losses;
  };
  std::string text;
  const std::vector<double> plain = course(false, text), compiled = course(true, text);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(compiled[i], plain[i], 0.02 * plain[i]);
  for (const char* name : {"fake_quantize_per_channel", "_fake_quantize_per_tensor", "moving_range"}) {
    EXPECT_THAT(text, HasSubstr(name));
    EXPECT_THAT(text, Not(HasSubstr(c10::str("::", name))));
  }
  EXPECT_THAT(text, HasSubstr("2 × to channels last")) << "of the input and of the gradient: " << text;
  EXPECT_THAT(text, Not(HasSubstr("from channels last"))) << text;
}

}  // namespace
}  // namespace bellows::compile_detail::testing
