#include "bellows/nn/norm.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "bellows/tap/observer.h"
#include "bellows/tap/op_tap.h"
#include "bellows/tap/saved_tensor_tap.h"
#include "tests/support/errors.h"

namespace bellows::nn {

namespace {

using testing::HasSubstr;

/// Output and gradients of x, weight and bias of one pass, in float64.
struct Pass {
  at::Tensor y, dx, dweight, dbias;

  std::vector<at::Tensor> all() const { return {y, dx, dweight, dbias}; }
};

template <class Norm>
Pass pass_of(Norm norm, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& dy) {
  const auto leaf = [](const at::Tensor& t) { return t.detach().requires_grad_(); };
  const at::Tensor x_leaf = leaf(x), w_leaf = leaf(weight), b_leaf = leaf(bias);
  const at::Tensor y = norm(x_leaf, w_leaf, b_leaf);
  const auto gradients = torch::autograd::grad({y}, {x_leaf, w_leaf, b_leaf}, {dy}, std::nullopt, false, true);
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  return {y.detach().to(at::kDouble), wide(gradients[0]), wide(gradients[1]), wide(gradients[2])};
}

/// LayerNorm or RMSNorm, ours or libtorch's, over the last dims.
struct NormCall {
  bool ours, center;
  int64_t dims = 1;

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) const {
    const at::IntArrayRef shape = x.sizes().slice(x.dim() - dims);
    if (center) return ours ? nn::layer_norm(x, shape, w, b, 1e-5) : at::layer_norm(x, shape, w, b, 1e-5);
    return ours ? nn::rms_norm(x, shape, w, 1e-5) : at::rms_norm(x, shape, w, 1e-5);
  }
};

double worst(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() ? (a - b).abs().max().item<double>() : 0;
}

void expect_equals_libtorch(const at::Tensor& x, int64_t dims, double tolerance) {
  const at::IntArrayRef shape = x.sizes().slice(x.dim() - dims);
  const at::Tensor w = torch::randn(shape, x.options()), b = torch::randn(shape, x.options());
  const at::Tensor dy = torch::randn(x.sizes(), x.options());
  for (const bool center : {true, false}) {
    const auto ours = pass_of(NormCall{true, center, dims}, x, w, b, dy).all();
    const auto reference = pass_of(NormCall{false, center, dims}, x, w, b, dy).all();
    for (size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE(c10::str(center ? "layer " : "rms ", x.sizes(), " result ", i));
      ASSERT_EQ(ours[i].defined(), reference[i].defined());
      if (!ours[i].defined()) continue;
      ASSERT_EQ(ours[i].sizes(), reference[i].sizes());
      EXPECT_TRUE(at::allclose(ours[i], reference[i], tolerance, tolerance));
    }
  }
}

class CountingTap : public tap::SavedTensorTap {
 public:
  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    bytes += static_cast<int64_t>(tensor.nbytes());
    return nullptr;
  }
  int64_t bytes = 0;
};

int64_t saved_bytes(const std::function<at::Tensor()>& forward) {
  const auto tap = std::make_shared<CountingTap>();
  const tap::SavedTensorGuard guard(tap);
  const at::Tensor y = forward();
  return tap->bytes;
}

class CpuAutocast {
 public:
  CpuAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~CpuAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

}  // namespace

TEST(Norm, EqualsLibtorchInFloat64) {
  at::manual_seed(1);
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1},
                                                             {15},
                                                             {0, 7},
                                                             {3, 0},
                                                             {2, 0, 5},
                                                             {17, 15},
                                                             {3, 5, 17},
                                                             {64, 96},
                                                             {2, 1, 1000},
                                                             {300, 130},
                                                             {4096, 768}}) {
    expect_equals_libtorch(torch::randn(sizes, at::kDouble), 1, 1e-12);
  }
  expect_equals_libtorch(torch::randn({4, 3, 5}, at::kDouble), 2, 1e-12);
  expect_equals_libtorch(torch::randn({4, 3, 5}, at::kDouble), 3, 1e-12);
}

TEST(Norm, EqualsLibtorchInFloat32) {
  at::manual_seed(2);
  expect_equals_libtorch(torch::randn({17, 768}), 1, 2e-5);
  expect_equals_libtorch(torch::randn({5, 17}), 1, 2e-5);
}

TEST(Norm, TakesAnyStrides) {
  at::manual_seed(3);
  expect_equals_libtorch(torch::randn({17, 9}, at::kDouble).t(), 1, 1e-12);
  expect_equals_libtorch(torch::randn({6, 20}, at::kDouble).slice(1, 1, 20, 3), 1, 1e-12);
  expect_equals_libtorch(torch::randn({1, 6}, at::kDouble).expand({4, 6}), 1, 1e-12);
  const at::Tensor images = torch::randn({2, 3, 4, 5}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  expect_equals_libtorch(images, 1, 1e-12);
  expect_equals_libtorch(images, 3, 1e-12);
  const at::Tensor x = torch::randn({4, 6}, at::kDouble).requires_grad_();
  nn::layer_norm(x, {6}).sum().backward();  // an expanded gradient
  EXPECT_LT(x.grad().abs().max().item<double>(), 1e-10);
}

TEST(Norm, LowPrecisionIsNoFurtherFromTheExactResultThanLibtorchs) {
  at::manual_seed(4);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = (torch::randn({512, 768}) * 2 + 1).to(type), dy = torch::randn({512, 768}).to(type);
    const at::Tensor w = torch::randn({768}).to(type), b = torch::randn({768}).to(type);
    const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
    for (const bool center : {true, false}) {
      const auto exact = pass_of(NormCall{false, center}, wide(x), wide(w), wide(b), wide(dy)).all();
      const auto ours = pass_of(NormCall{true, center}, x, w, b, dy).all();
      const auto theirs = pass_of(NormCall{false, center}, x, w, b, dy).all();
      for (size_t i = 0; i < exact.size(); ++i) {
        if (!exact[i].defined()) continue;
        EXPECT_LE(worst(ours[i], exact[i]), worst(theirs[i], exact[i])) << type << " center " << center << " " << i;
      }
    }
  }
}

TEST(Norm, Fp32WeightsServeLowPrecisionInput) {
  at::manual_seed(5);
  const at::Tensor x = torch::randn({9, 33}).to(at::kBFloat16), w = torch::randn({33}).requires_grad_();
  const at::Tensor y = nn::layer_norm(x, {33}, w);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), at::layer_norm(x.to(at::kFloat), {33}, w), 1e-2, 1e-2));
}

TEST(Norm, DefaultEpsOfRmsNormIsPyTorchs) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double small = type == at::kDouble ? 1e-8 : 3e-4;
    const at::Tensor x = (torch::randn({4, 8}, at::kDouble) * small).to(type);
    EXPECT_TRUE(at::allclose(nn::rms_norm(x, {8}).to(at::kDouble), at::rms_norm(x, {8}).to(at::kDouble), 1e-2, 0))
        << type;
  }
}

TEST(Norm, AutocastKeepsTheDtypeThatLibtorchGives) {
  const CpuAutocast guard;
  const at::Tensor w = torch::ones({8});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({3, 8}).to(type);
    EXPECT_EQ(nn::layer_norm(x, {8}, w).scalar_type(), at::layer_norm(x, {8}, w).scalar_type());
    EXPECT_EQ(nn::rms_norm(x, {8}, w).scalar_type(), at::rms_norm(x, {8}, w).scalar_type());
  }
}

TEST(Norm, SavesTheInputAndTwoNumbersARow) {
  const at::Tensor w = torch::ones({96}).requires_grad_(), b = torch::zeros({96}).requires_grad_();
  const at::Tensor x = torch::randn({50, 96}).requires_grad_() * 1, low = x.to(at::kBFloat16);
  EXPECT_EQ(saved_bytes([&] { return nn::layer_norm(x, {96}, w, b); }), 50 * 96 * 4 + 50 * 8);
  EXPECT_EQ(saved_bytes([&] { return at::layer_norm(x, {96}, w, b); }), 50 * 96 * 4 + 50 * 8);
  EXPECT_EQ(saved_bytes([&] { return nn::rms_norm(x, {96}, w); }), 50 * 96 * 4 + 50 * 4);
  EXPECT_GT(saved_bytes([&] { return at::rms_norm(x, {96}, w); }), 50 * 96 * 8);
  EXPECT_EQ(saved_bytes([&] { return nn::layer_norm(low, {96}, w, b); }), 50 * 96 * 2 + 50 * 8);
  // The operand is kept as it was given, not as a contiguous copy.
  const at::Tensor turned = torch::randn({96, 50}).requires_grad_() * 1;
  EXPECT_EQ(saved_bytes([&] { return nn::layer_norm(turned.t(), {96}); }), 50 * 96 * 4 + 50 * 8);
  const c10::NoGradGuard no_grad;
  EXPECT_EQ(saved_bytes([&] { return nn::layer_norm(x, {96}, w, b); }), 0);
}

TEST(Norm, RefusesWhatDoesNotFit) {
  const at::Tensor x = torch::randn({4, 6}), w = torch::ones({6});
  EXPECT_THAT(message_of([&] { nn::layer_norm(x, {5}); }),
              HasSubstr("layer_norm: expected normalized_shape to be the last dims of the input, at least one, got [5] "
                        "for an input of [4, 6]"));
  EXPECT_THROW(nn::layer_norm(x, {}), c10::ValueError);
  EXPECT_THROW(nn::layer_norm(x, {1, 4, 6}), c10::ValueError);
  EXPECT_THROW(nn::rms_norm(at::Tensor(), {6}), c10::ValueError);
  EXPECT_THAT(message_of([&] { nn::rms_norm(x.to(at::kLong), {6}); }),
              HasSubstr("Float, Double, BFloat16 or Half, got Long"));
  EXPECT_THAT(message_of([&] {
                nn::layer_norm(x, {6}, torch::ones({1, 6}));
              }),
              HasSubstr("weight of normalized_shape [6]"));
  EXPECT_THAT(message_of([&] { nn::layer_norm(x, {6}, w, torch::ones({5})); }), HasSubstr("expected bias of"));
  EXPECT_THAT(message_of([&] { nn::layer_norm(x, {6}, w.to(at::kDouble)); }),
              HasSubstr("expected weight in the input's dtype Float, got Double"));
  EXPECT_THROW(nn::rms_norm(x, {6}, w.to(at::kBFloat16)), c10::ValueError);
  EXPECT_THROW(nn::rms_norm(x.to(at::kBFloat16), {6}, w.to(at::kHalf)), c10::ValueError);
  EXPECT_THAT(message_of([&] { nn::rms_norm(x, {6}, torch::ones({6}, at::kMeta)); }),
              HasSubstr("expected weight on the input's device cpu, got meta"));
  for (const double eps : {0.0, -1e-5, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(nn::layer_norm(x, {6}, w, {}, eps), c10::ValueError) << eps;
    EXPECT_THROW(nn::rms_norm(x, {6}, w, eps), c10::ValueError) << eps;
  }
}

TEST(Norm, MetaTensorsGiveShapes) {
  const at::Tensor x = torch::randn({4, 6}, at::kMeta).requires_grad_(),
                   w = torch::ones({6}, at::kMeta).requires_grad_();
  const at::Tensor y = nn::layer_norm(nn::rms_norm(x, {6}, w), {6}, w);
  EXPECT_TRUE(y.is_meta());
  const auto gradients = torch::autograd::grad({y.sum()}, {x, w});
  EXPECT_EQ(gradients[0].sizes(), x.sizes());
  EXPECT_EQ(gradients[1].sizes(), w.sizes());
}

TEST(Norm, OtherLayoutsGoToLibtorch) {
  const at::Tensor sparse = torch::eye(6).to_sparse();
  EXPECT_THAT(message_of([&] { nn::layer_norm(sparse, {6}); }), HasSubstr("unsupported memory format"));
}

}  // namespace bellows::nn
