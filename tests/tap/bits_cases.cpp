#include "bits_cases.h"

namespace bellows::tap::testing {

BitsInputs::BitsInputs() {
  torch::manual_seed(20240611);
  const auto leaf = [](at::Tensor t) { return t.detach().requires_grad_(); };
  a = leaf(torch::randn({13, 37}));
  b = leaf(torch::randn({13, 37}));
  pos = leaf(torch::rand({13, 37}) + 0.1);
  unit = leaf(torch::rand({13, 37}) * 1.8 - 0.9);
  zeros = leaf(torch::randn({13, 37}).masked_fill(torch::rand({13, 37}) < 0.05, 0.0));
  w = leaf(torch::randn({37, 19}));
  v = leaf(torch::randn({37}));
  u = leaf(torch::randn({37}));
  batch = leaf(torch::randn({4, 5, 6}));
  batch2 = leaf(torch::randn({4, 6, 7}));
  square = leaf(torch::randn({8, 8}) + 4 * torch::eye(8));
  const auto root = torch::randn({8, 8});
  spd = leaf(at::mm(root, root.t()) + torch::eye(8));
  image = leaf(torch::randn({2, 4, 10, 10}));
  signal = leaf(torch::randn({2, 4, 24}));
  kernel = leaf(torch::randn({6, 4, 3, 3}));
  bias = leaf(torch::randn({6}));
  one = leaf(torch::randn({}));
  index = torch::randint(0, 13, {11});
  columns = torch::randint(0, 37, {13, 5});
  mask = torch::rand({13, 37}) < 0.5;
  labels = torch::randint(0, 37, {13});
}

std::vector<at::Tensor> BitsInputs::leaves() const {
  return {a, b, pos, unit, zeros, w, v, u, batch, batch2, square, spd, image, signal, kernel, bias, one};
}

std::vector<at::Tensor> BitsCase::run_with_backward(const BitsInputs& inputs) const {
  std::vector<at::Tensor> results = run(inputs), roots, seeds;
  for (at::Tensor& result : results) {
    if (result.requires_grad()) {
      roots.push_back(result);
      seeds.push_back(
          at::linspace(0.3, 1.7, result.numel(), result.options().requires_grad(false)).view(result.sizes()));
    }
    result = result.detach();
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
  return results;
}

const std::vector<BitsCase> pointwise_cases{
    BITS_CASE("abs", i.a.abs()),
    BITS_CASE("acos", i.unit.acos()),
    BITS_CASE("add", i.a + i.b),
    BITS_CASE("add.alpha", at::add(i.a, i.b, 0.3)),
    BITS_CASE("add_", (i.a * 1).add_(i.b)),
    BITS_CASE("addcdiv", at::addcdiv(i.a, i.b, i.pos, 0.5)),
    BITS_CASE("addcmul", at::addcmul(i.a, i.b, i.pos, 0.5)),
    BITS_CASE("angle", i.a.angle()),
    BITS_CASE("asin", i.unit.asin()),
    BITS_CASE("atan", i.a.atan()),
    BITS_CASE("atan2", at::atan2(i.a, i.b)),
    BITS_CASE("atanh", i.unit.atanh()),
    BITS_CASE("cat", at::cat({i.a, i.b}, 1)),
    BITS_CASE("celu", at::celu(i.a)),
    BITS_CASE("clamp", i.a.clamp(-0.5, 0.5)),
    BITS_CASE("clamp.tensor", at::clamp(i.a, i.unit, i.pos)),
    BITS_CASE("clone", i.a.clone()),
    BITS_CASE("complex", at::view_as_real(at::complex(i.a, i.b) * at::complex(i.b, i.a))),
    BITS_CASE("copysign", at::copysign(i.a, i.b)),
    BITS_CASE("cos", i.a.cos()),
    BITS_CASE("cosh", i.a.cosh()),
    BITS_CASE("digamma", i.pos.digamma()),
    BITS_CASE("i0", i.a.i0()),
    BITS_CASE("igamma", at::igamma(i.pos.detach(), i.pos)),
    BITS_CASE("ldexp", at::ldexp(i.a, torch::arange(37))),
    BITS_CASE("polygamma", at::polygamma(1, i.pos)),
    BITS_CASE("special_ndtri", at::special_ndtri(i.pos * 0.8)),
    BITS_CASE("special_entr", at::special_entr(i.pos)),
    BITS_CASE("div", i.a / i.pos),
    BITS_CASE("div.floor", at::div(i.a, i.pos, "floor")),
    BITS_CASE("elu", at::elu(i.a)),
    BITS_CASE("erf", i.a.erf()),
    BITS_CASE("erfinv", i.unit.erfinv()),
    BITS_CASE("exp", i.a.exp()),
    BITS_CASE("expm1", i.a.expm1()),
    BITS_CASE("fmax", at::fmax(i.a, i.b)),
    BITS_CASE("fmod", at::fmod(i.a, i.pos)),
    BITS_CASE("frac", i.a.frac()),
    BITS_CASE("gelu", at::gelu(i.a)),
    BITS_CASE("gelu.tanh", at::gelu(i.a, "tanh")),
    BITS_CASE("glu", at::glu(i.w.t().slice(1, 0, 36), 1)),
    BITS_CASE("hardshrink", at::hardshrink(i.a)),
    BITS_CASE("hardsigmoid", at::hardsigmoid(i.a)),
    BITS_CASE("hardswish", at::hardswish(i.a)),
    BITS_CASE("hardtanh", at::hardtanh(i.a)),
    BITS_CASE("hypot", at::hypot(i.a, i.b)),
    BITS_CASE("leaky_relu", at::leaky_relu(i.a, 0.1)),
    BITS_CASE("lerp", at::lerp(i.a, i.b, 0.3)),
    BITS_CASE("lerp.tensor", at::lerp(i.a, i.b, i.pos)),
    BITS_CASE("lgamma", i.pos.lgamma()),
    BITS_CASE("log", i.pos.log()),
    BITS_CASE("log1p", i.pos.log1p()),
    BITS_CASE("logaddexp", at::logaddexp(i.a, i.b)),
    BITS_CASE("logit", at::logit(i.pos * 0.8)),
    BITS_CASE("log_sigmoid", at::log_sigmoid(i.a)),
    BITS_CASE("masked_fill", i.a.masked_fill(i.mask, 2.0)),
    BITS_CASE("maximum", at::maximum(i.a, i.b)),
    BITS_CASE("mish", at::mish(i.a)),
    BITS_CASE("mul", i.a* i.b),
    BITS_CASE("mul.broadcast", i.a* i.v),
    BITS_CASE("mul.scalar_tensor", i.a* i.one),
    BITS_CASE("mul_", (i.a * 1).mul_(i.b)),
    BITS_CASE("nan_to_num", i.a.log().nan_to_num(0.5)),
    BITS_CASE("neg", i.a.neg()),
    BITS_CASE("pow.scalar", i.pos.pow(2.5)),
    BITS_CASE("pow.square", i.a.pow(2)),
    BITS_CASE("pow.tensor", at::pow(i.pos, i.b)),
    BITS_CASE("pow.base", at::pow(2.5, i.b)),
    BITS_CASE("prelu", at::prelu(i.image, i.bias.slice(0, 0, 4))),
    BITS_CASE("reciprocal", i.pos.reciprocal()),
    BITS_CASE("relu", i.a.relu()),
    BITS_CASE("relu6", at::relu6(i.a)),
    BITS_CASE("remainder", at::remainder(i.a, i.pos)),
    BITS_CASE("rsqrt", i.pos.rsqrt()),
    BITS_CASE("rsub", at::rsub(i.a, i.b)),
    BITS_CASE("selu", at::selu(i.a)),
    BITS_CASE("sigmoid", i.a.sigmoid()),
    BITS_CASE("sign", i.a.sign() * i.a),
    BITS_CASE("silu", at::silu(i.a)),
    BITS_CASE("sin", i.a.sin()),
    BITS_CASE("sinc", i.a.sinc()),
    BITS_CASE("softplus", at::softplus(i.a)),
    BITS_CASE("softshrink", at::softshrink(i.a)),
    BITS_CASE("sqrt", i.pos.sqrt()),
    BITS_CASE("square", i.a.square()),
    BITS_CASE("sub", i.a - i.b),
    BITS_CASE("tan", i.unit.tan()),
    BITS_CASE("tanh", i.a.tanh()),
    BITS_CASE("threshold", at::threshold(i.a, 0.1, 0.2)),
    BITS_CASE("to.bfloat16", i.a.to(at::kBFloat16).to(at::kFloat)),
    BITS_CASE("to.float64", i.a.to(at::kDouble)),
    BITS_CASE("where", at::where(i.mask, i.a, i.b)),
    BITS_CASE("where.scalar", at::where(i.mask, i.a, 0.5)),
    BITS_CASE("xlogy", at::xlogy(i.pos, i.pos + 1)),
};

}  // namespace bellows::tap::testing
