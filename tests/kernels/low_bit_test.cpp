// State of 8 and 4 bits, and rounding at random.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "bellows/kernels/cpu/optimizers.h"
#include "bellows/kernels/dynamic_map.h"
#include "bellows/kernels/ref/optimizers.h"

namespace bellows::kernels {

namespace {

using LowBitTensor = at::Tensor;

/// bitsandbytes' create_dynamic_map(), in float64.
std::vector<double> bitsandbytes_map(bool with_sign, int decades) {
  std::vector<double> map = {0, 1};
  for (int i = 0; i < decades; ++i) {
    const int n = (with_sign ? 1 : 2) << i;
    for (int k = 0; k < n; ++k) {
      const double mean = 0.1 + 0.9 * (k + 0.5) / n;
      map.push_back(mean * std::pow(10, i + 1 - decades));
      if (with_sign) map.push_back(-map.back());
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

template <class Map>
void expect_nearest_codes(const Map& map, const std::vector<double>& values, bool with_sign, size_t least = 0) {
  for (size_t code = 0; code < values.size(); ++code)
    EXPECT_NEAR(map.decode(static_cast<int>(code), 1), values[code], 2e-6 * std::abs(values[code])) << code;
  const auto check = [&](float x) {
    const auto distance = [&](size_t code) { return std::abs(x - values[code]); };
    size_t nearest = least;
    for (size_t code = least; code < values.size(); ++code)
      nearest = distance(code) < distance(nearest) ? code : nearest;
    const auto ours = static_cast<size_t>(map.encode(x));
    EXPECT_LE(distance(ours), distance(nearest) + 1e-6 * std::abs(x)) << x << ": " << ours << ", not " << nearest;
  };
  for (size_t code = 1; code < values.size(); ++code) {
    const double middle = (values[code - 1] + values[code]) / 2;
    for (const double factor : {1 - 1e-6, 1.0, 1 + 1e-6}) check(static_cast<float>(middle * factor));
    check(static_cast<float>(values[code]));
  }
  for (double x = 1; x > 1e-9; x *= 0.97) check(static_cast<float>(x));
  if (with_sign) check(-1);
  check(0);
}

/// A tensor's arrays for a few steps.
struct LowBitArrays {
  LowBitTensor param, grad, master, codes[2], scale[2];

  LowBitArrays(int64_t size, StepTypes types, bool with_master) {
    const int64_t block = types.low_bit == LowBit::int8 ? State8::block : State4::block;
    const int64_t bytes = types.low_bit == LowBit::int8 ? State8::block_bytes : State4::block_bytes;
    const int64_t blocks = (size + block - 1) / block;
    param = at::randn({size}).to(types.param == Type::bf16 ? at::kBFloat16 : at::kFloat);
    if (with_master) master = at::randn({size});
    for (size_t k = 0; k < 2; ++k) {
      codes[k] = at::zeros({types.low_bit == LowBit::int8 ? size : blocks * bytes}, at::kByte);
      scale[k] = at::zeros({blocks});
    }
    new_gradient(types);
  }
  void new_gradient(StepTypes types) {
    // Magnitudes over many decades, as in training: all codes come up.
    grad = (at::randn({param.numel()}) * at::exp(at::randn({param.numel()}) * 3))
               .to(types.grad == Type::bf16 ? at::kBFloat16 : at::kFloat);
  }
  LowBitArrays clone() const {
    LowBitArrays copy = *this;
    for (LowBitTensor* t : copy.all()) *t = t->clone();
    return copy;
  }
  std::vector<LowBitTensor*> all() {
    std::vector<LowBitTensor*> result = {&param, &codes[0], &codes[1], &scale[0], &scale[1]};
    if (master.defined()) result.push_back(&master);
    return result;
  }
  template <class Rule>
  StepTensor<Rule> step(const Rule& rule) {
    StepTensor<Rule> t{.size = param.numel(), .param = param.mutable_data_ptr(), .grad = grad.const_data_ptr()};
    if (master.defined()) t.master = master.mutable_data_ptr();
    for (size_t k = 0; k < 2; ++k) {
      t.state[k] = codes[k].mutable_data_ptr();
      t.scale[k] = scale[k].mutable_data_ptr<float>();
    }
    t.rounding_seed = 17;
    t.rule = rule;
    return t;
  }
};

/// Three steps from the same state at each. A code may differ by one where the value lies within rounding of the
/// middle.
template <class Rule>
void expect_low_bit_parity(Rule rule, StepTypes types, bool with_master) {
  int64_t codes = 0, different = 0;
  for (const int64_t size : {1, 15, 127, 129, 256, 5000, 40000}) {
    LowBitArrays fast(size, types, with_master);
    for (int step = 1; step <= 3; ++step) {
      if constexpr (std::is_same_v<Rule, SgdRule>) rule.first = step == 1;
      if constexpr (std::is_same_v<Rule, AdamRule>) rule.step = step;
      fast.new_gradient(types);
      LowBitArrays reference = fast.clone();
      cpu::step(std::vector{fast.step(rule)}, types);
      ref::step(std::vector{reference.step(rule)}, types);
      const auto ours = fast.all(), theirs = reference.all();
      for (size_t k = 0; k < ours.size(); ++k) {
        const bool is_code = k == 1 || k == 2;
        const LowBitTensor difference = (ours[k]->to(at::kDouble) - theirs[k]->to(at::kDouble)).abs();
        if (is_code) {
          codes += difference.numel();
          different += (difference != 0).sum().item<int64_t>();
          EXPECT_LE(difference.max().item<double>(), types.low_bit == LowBit::int8 ? 1 : 16) << k;  // 16: an upper half
        } else {
          const double limit = k == 0 && types.param == Type::bf16 ? 1e-2 : 2e-6;
          EXPECT_TRUE(at::allclose(*ours[k], *theirs[k], limit, limit)) << "array " << k << ", size " << size;
        }
      }
    }
  }
  EXPECT_LE(different, codes / 20000 + 1);
}

}  // namespace

TEST(LowBitMaps, AreBitsandbytesAndCodesTheNearest) {
  expect_nearest_codes(State8::first, bitsandbytes_map(true, 7), true);
  expect_nearest_codes(State8::second, bitsandbytes_map(false, 7), false, 1);  // 0 is read only
  expect_nearest_codes(State4::first, bitsandbytes_map(true, 3), true);
  std::vector<double> linear;
  for (int i = 1; i <= 16; ++i) linear.push_back(i / 16.0);
  expect_nearest_codes(State4::second, linear, false);
}

TEST(LowBitKernels, EqualTheReference) {
  at::manual_seed(9);
  for (const LowBit bits : {LowBit::int8, LowBit::int4}) {
    for (const auto& [types, master] : {std::pair{StepTypes{.low_bit = bits}, false},
                                        std::pair{StepTypes{Type::bf16, Type::bf16, Type::f32, bits}, false},
                                        std::pair{StepTypes{Type::bf16, Type::f32, Type::f32, bits}, true},
                                        std::pair{StepTypes{Type::bf16, Type::bf16, Type::f32, bits, true}, true}}) {
      SCOPED_TRACE(testing::Message() << "int" << (bits == LowBit::int8 ? 8 : 4) << ", master " << master);
      expect_low_bit_parity(
          AdamRule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .decoupled = true}, types,
          master);
      expect_low_bit_parity(
          SgdRule{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .grad_factor = 0.5, .nesterov = true}, types,
          master);
      expect_low_bit_parity(LionRule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99}, types, master);
    }
  }
}

// Where it is beside roots as small as they come, nothing may be left out of the quotient.
TEST(LowBitKernels, EqualTheReferenceWithoutEpsilon) {
  at::manual_seed(10);
  expect_low_bit_parity(AdamRule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99}, StepTypes{.low_bit = LowBit::int8}, false);
}

// What is not finite, in the gradient or because its square is not, stays with its element.
TEST(LowBitKernels, NothingSpoilsABlock) {
  at::manual_seed(10);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const LowBit bits : {LowBit::int8, LowBit::int4}) {
    const StepTypes types{.low_bit = bits};
    const AdamRule rule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    LowBitArrays arrays(300, types, false);
    cpu::step(std::vector{arrays.step(rule)}, types);
    LowBitArrays plain = arrays.clone();
    const LowBitTensor before = arrays.param.clone();
    const LowBitTensor places = at::tensor({3, 100, 255, 299}, at::kLong);
    plain.grad.index_put_({places}, 0.0f);
    arrays.grad = plain.grad.index_put({places}, at::tensor({inf, nan, -inf, 1e30f}));
    cpu::step(std::vector{arrays.step(rule)}, types);
    cpu::step(std::vector{plain.step(rule)}, types);
    EXPECT_TRUE(at::equal(arrays.param.index({places}), before.index({places})));
    const LowBitTensor others = at::ones({300}, at::kBool).index_put_({places}, false);
    EXPECT_TRUE(at::equal(arrays.param.index({others}), plain.param.index({others})));
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_TRUE(at::isfinite(arrays.scale[k]).all().item<bool>());
      EXPECT_TRUE((arrays.scale[k] > 0).all().item<bool>());
    }
  }
}

// The mean of n roundings of x, which lies between two bf16 numbers a unit u apart, has a standard deviation below u /
// (2 √n).
TEST(StochasticRounding, IsUnbiasedReproducibleAndKeepsWhatIsExact) {
  at::manual_seed(11);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  LowBitTensor master = at::cat({at::rand({2500}) + 1, at::tensor({1.5f, inf, -inf, nan, 0.0f, -0.0f})});
  const LowBitTensor grad = at::zeros_like(master), param = at::empty_like(master, at::kBFloat16),
                     again = param.clone();
  const StepTypes types{.param = Type::bf16, .stochastic = true};
  const auto round = [&](const LowBitTensor& to, uint64_t seed, bool reference) {
    StepTensor<SgdRule> t{.size = master.numel(),
                          .param = to.mutable_data_ptr(),
                          .grad = grad.const_data_ptr(),
                          .master = master.mutable_data_ptr(),
                          .rounding_seed = seed};
    reference ? ref::step(std::vector{t}, types) : cpu::step(std::vector{t}, types);
  };
  constexpr int rounds = 400;
  LowBitTensor sum = at::zeros({2500}, at::kDouble);
  for (uint64_t seed = 0; seed < rounds; ++seed) {
    round(param, seed, false);
    if (seed % 100 == 0) {
      round(again, seed, true);
      EXPECT_TRUE(at::equal(param.view(at::kShort), again.view(at::kShort)));
    }
    sum += param.slice(0, 0, 2500).to(at::kDouble);
  }
  const double unit = 1.0 / 128;
  const LowBitTensor error = sum / rounds - master.slice(0, 0, 2500);
  EXPECT_LE(error.abs().max().item<double>(), 5 * unit / (2 * std::sqrt(rounds)));
  EXPECT_LE(std::abs(error.mean().item<double>()), 5 * unit / (2 * std::sqrt(rounds * 2500.0)));
  EXPECT_TRUE(at::allclose(param.slice(0, 2500), master.slice(0, 2500).to(at::kBFloat16), 0, 0, /*equal_nan=*/true));
  LowBitTensor other = param.clone();
  round(other, 12345, false);
  EXPECT_FALSE(at::equal(other.slice(0, 0, 2500), param.slice(0, 0, 2500)));
}

}  // namespace bellows::kernels
