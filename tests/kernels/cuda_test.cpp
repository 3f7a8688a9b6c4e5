// The kernels of kernels/cuda against the reference. kernels_test runs them on the host, one thread after another
// (tests/support/cuda_on_host). device_test compiles this file with BELLOWS_TEST_DEVICE and runs them on the GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "bellows/kernels/dropout_norm.h"
#include "bellows/kernels/ref/optimizers.h"

#ifdef BELLOWS_TEST_DEVICE
#include "bellows/kernels/cuda/activation.h"
#include "bellows/kernels/cuda/layer_norm.h"
#include "bellows/kernels/cuda/low_bit.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/kernels/cuda/softmax.h"
#else
#include "tests/support/cuda_on_host/cuda_runtime.h"

#define cuda on_host  // beside the library's own, which are stubs
#include "bellows/kernels/cuda/activation.cu"
#include "bellows/kernels/cuda/layer_norm.cu"
#include "bellows/kernels/cuda/low_bit.cu"
#include "bellows/kernels/cuda/optimizers.cu"
#include "bellows/kernels/cuda/softmax.cu"
#undef cuda
#endif

namespace bellows::kernels {

namespace {

#ifdef BELLOWS_TEST_DEVICE
namespace target = cuda;
const c10::Device target_device(c10::kCUDA, 0);
void reverse_threads(bool) {}  // the order of threads varies by itself
#else
namespace target = on_host;
const c10::Device target_device(c10::kCPU);
void reverse_threads(bool reversed) {
  test::CudaBlock::reversed = reversed;
}
#endif

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr at::ScalarType all_types[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

at::ScalarType sums_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// A few units in the last place of results of order 1.
double tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 4e-3 : 3e-2;
}

void* data_of(const Tensor& t) {
  return t.defined() && t.numel() > 0 ? t.data_ptr() : nullptr;
}

/// A copy where the kernels (`ours`) or the reference can read it.
Tensor placed(bool ours, const Tensor& t) {
  return t.defined() ? t.to(ours ? target_device : c10::Device(c10::kCPU)) : t;
}

/// Compares run(true), by the kernels, with run(false), by the reference. A second run of the kernels, in which the last
/// thread begins, gives the same bits.
void expect_as_reference(double tolerance, const std::function<Tensors(bool)>& run) {
  const Tensors ours = run(true), reference = run(false);
  reverse_threads(true);
  const Tensors reversed = run(true);
  reverse_threads(false);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!ours[i].defined()) continue;
    const Tensor a = ours[i].cpu().to(at::kDouble), b = reference[i].to(at::kDouble);
    const double scale = b.numel() > 0 ? std::max(1.0, b.nan_to_num(0, 0, 0).abs().max().item<double>()) : 1;
    EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance * scale, /*equal_nan=*/true)) << "result " << i;
    EXPECT_TRUE(at::equal(a.nan_to_num(), reversed[i].cpu().to(at::kDouble).nan_to_num()))
        << "result " << i << " reversed";
  }
}

Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return (at::randn(sizes, at::kDouble) * 2).to(dtype);
}

/// Statistics and gradient of [rows, columns] within wider rows, in two ranges of classes; in place when `over`.
Tensors run_softmax(bool ours, const Tensor& logits, int64_t columns, const Tensor& labels, bool over) {
  const Tensor wide = placed(ours, logits), classes = placed(ours, labels);
  const int64_t rows = wide.size(0);
  Tensor state = at::zeros({4, rows}, wide.options().dtype(sums_of(wide.scalar_type())));
  state[0].fill_(-HUGE_VAL);
  const Tensor scores = wide.clone(), gradient = over ? scores : at::full_like(wide, -7);
  const auto part = [&](int64_t begin, int64_t end) {
    return SoftmaxRows{
        wide.scalar_type(),         rows, end - begin, wide.stride(0), begin, scores.slice(1, begin).data_ptr(),
        classes.data_ptr<int64_t>()};
  };
  for (const auto& range : {part(0, columns / 3), part(columns / 3, columns)}) {
    const SoftmaxStatistics args{range, data_of(state[0]), data_of(state[1]), data_of(state[2]), data_of(state[3])};
    ours ? target::softmax_statistics(args, nullptr) : ref::softmax_statistics(args);
  }
  const Tensor log_sum = state[0] + state[1].log(), scale = at::linspace(0, 2, rows, state.options());
  for (const auto& range : {part(0, columns / 3), part(columns / 3, columns)}) {
    const SoftmaxGradient args{
        range, data_of(log_sum), data_of(scale), 0.8, 0.1, gradient.slice(1, range.first).data_ptr()};
    ours ? target::softmax_gradient(args, nullptr) : ref::softmax_gradient(args);
  }
  return {log_sum, state[2], state[3], gradient};
}

struct ActivationData {
  Activation activation;
  Tensor x, up, dy;
};

/// y, dx (over dy), dup, and y once more, each `offset` values into a tensor.
Tensors run_gated(bool ours, const ActivationData& on_cpu, int64_t offset) {
  const auto behind = [&](const Tensor& t) {  // at the same offset from a multiple of 16 bytes as on the CPU
    const Tensor wide = at::empty({t.numel() + t.storage_offset()}, t.options().device(placed(ours, t).device()));
    return wide.slice(0, t.storage_offset()).copy_(t);
  };
  const ActivationData data{on_cpu.activation, behind(on_cpu.x), behind(on_cpu.up), behind(on_cpu.dy)};
  const auto fresh = [&] { return at::full({data.x.numel() + offset}, -7, data.x.options()).slice(0, offset); };
  Tensors out = {fresh(), fresh().copy_(data.dy), fresh(), fresh()};
  const at::ScalarType dtype = data.x.scalar_type();
  const void *x = data_of(data.x), *up = data_of(data.up);
  const ActivationForward forward{data.activation, dtype, data.x.numel(), x, up, data_of(out[0])};
  const ActivationBackward backward{data.activation, dtype,           data.x.numel(), data_of(out[1]), x, up,
                                    data_of(out[1]), data_of(out[2]), data_of(out[3])};
  ours ? target::activation_forward(forward, nullptr) : ref::activation_forward(forward);
  ours ? target::activation_backward(backward, nullptr) : ref::activation_backward(backward);
  return out;
}

struct NormCase {
  int64_t rows, columns;
  bool center = true, affine = true;
};

/// All that a norm behind dropout, or one alone, reads and writes.
struct NormArrays {
  NormArrays(at::ScalarType type, const NormCase& c) : dtype(type), shape(c) {
    const std::vector<int64_t> sizes = {c.rows, c.columns};
    x = random(sizes, dtype), residual = random(sizes, dtype) + 3, dy = random(sizes, dtype),
    dsum = random(sizes, dtype);
    if (c.affine) weight = random({c.columns}, sums_of(dtype)), bias = random({c.columns}, sums_of(dtype));
  }
  Tensors run(bool ours, bool drops) const {
    if (ours && target_device.is_cuda() && x.is_cpu()) return on_device().run(ours, drops);
    const at::TensorOptions sums = x.options().dtype(sums_of(dtype));
    const Tensor mean = shape.center ? at::full({shape.rows}, -7, sums) : Tensor(),
                 rstd = at::full({shape.rows}, -7, sums);
    const Tensor y = at::full_like(x, -7), sum = drops ? at::full_like(x, -7) : x, dresidual = at::full_like(x, -7);
    const Tensor dx = at::full_like(x, -7), dweight = at::full({shape.columns}, -7, sums), dbias = dweight.clone();
    const NormForward forward{dtype,           shape.rows,    shape.columns, 1e-5,          data_of(sum),
                              data_of(weight), data_of(bias), data_of(y),    data_of(mean), data_of(rstd)};
    const NormBackward backward{dtype,           shape.rows,    shape.columns, data_of(dy),        data_of(sum),
                                data_of(weight), data_of(mean), data_of(rstd), data_of(dresidual), data_of(dweight),
                                data_of(dbias)};
    const Tensor workspace = at::full({target::norm_workspace(shape.rows, shape.columns)}, -7, sums);
    if (drops) {
      const DropoutNormForward f{forward, mask, data_of(x), data_of(residual), data_of(sum)};
      const DropoutNormBackward b{backward, mask, shape.center ? data_of(dsum) : nullptr, data_of(dx)};
      ours ? target::dropout_norm_forward(f, nullptr) : ref::dropout_norm_forward(f);
      ours ? target::dropout_norm_backward(b, data_of(workspace), nullptr) : ref::dropout_norm_backward(b);
    } else {
      ours ? target::norm_forward(forward, nullptr) : ref::norm_forward(forward);
      ours ? target::norm_backward(backward, data_of(workspace), nullptr) : ref::norm_backward(backward);
    }
    return {y, sum, rstd, dresidual, dx, dweight, dbias, mean};
  }

  NormArrays on_device() const {
    NormArrays result = *this;
    for (Tensor* t : {&result.x, &result.residual, &result.dy, &result.dsum, &result.weight, &result.bias})
      *t = placed(true, *t);
    return result;
  }

  at::ScalarType dtype;
  NormCase shape;
  DropoutMask mask{12345, 0.3};
  Tensor x, residual, dy, dsum, weight, bias;
};

}  // namespace

TEST(CudaKernels, SoftmaxEqualsTheReference) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : all_types) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(1, 1), {5, 17}, {3, 64}, {2, 4133}}) {
      for (const bool over : {false, true}) {
        SCOPED_TRACE(c10::str(dtype, " ", rows, " x ", columns, over ? " in place" : ""));
        const Tensor target = at::randint(columns, {rows}, at::kLong), wide = random({rows, columns + 3}, dtype);
        wide.select(1, columns / 2).fill_(-HUGE_VAL);
        expect_as_reference(tolerance_of(dtype),
                            [&, n = columns](bool ours) { return run_softmax(ours, wide, n, target, over); });
      }
    }
  }
}

TEST(CudaKernels, SoftmaxKeepsNaNAndRowsOfMinusInfinity) {
  Tensor wide = at::zeros({4, 40});
  wide[1][0] = wide[2][39] = NAN;
  wide[3].fill_(-HUGE_VAL);
  const Tensor target = at::zeros({4}, at::kLong);
  expect_as_reference(1e-6, [&](bool ours) { return run_softmax(ours, wide, 40, target, false); });
  const Tensor log_sum = run_softmax(true, wide, 40, target, false)[0];
  EXPECT_FLOAT_EQ(log_sum[0].item<float>(), std::log(40.F));
  EXPECT_TRUE(log_sum.slice(0, 1, 3).isnan().all().item<bool>());
  EXPECT_EQ(log_sum[3].item<float>(), -HUGE_VALF);
}

TEST(CudaKernels, ActivationsEqualTheReference) {
  at::manual_seed(2);
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::swiglu}) {
    for (const at::ScalarType dtype : all_types) {
      for (const auto& [count, from, to] :
           {std::array<int64_t, 3>{0, 0, 0}, {1, 0, 0}, {15, 1, 1}, {5003, 3, 3}, {517, 0, 1}}) {
        SCOPED_TRACE(c10::str(static_cast<int>(activation), " ", dtype, " ", count, " from ", from, " to ", to));
        const auto part = [&, n = count, begin = from] { return random({n + begin}, dtype).slice(0, begin); };
        const ActivationData data{activation, part(), part(), part()};
        expect_as_reference(tolerance_of(dtype), [&, offset = to](bool ours) { return run_gated(ours, data, offset); });
      }
    }
  }
}

TEST(CudaKernels, NormsEqualTheReference) {
  at::manual_seed(3);
  const NormCase cases[] = {{0, 5}, {2, 0}, {1, 1}, {3, 15}, {19, 16}, {3, 257, false}, {2, 64, false, false}};
  for (const at::ScalarType dtype : all_types) {
    for (const NormCase& shape : cases) {
      const NormArrays data(dtype, shape);
      for (const bool drops : {false, true}) {
        SCOPED_TRACE(c10::str(dtype, " ", shape.rows, " x ", shape.columns, drops ? " behind dropout" : ""));
        expect_as_reference(tolerance_of(dtype) * 2, [&](bool ours) { return data.run(ours, drops); });
      }
    }
  }
}

// More rows than the chunks take at least, and columns for more than one block.
TEST(CudaKernels, GradientsOfWeightAndBiasSumAllRows) {
  at::manual_seed(4);
  for (const int64_t columns : {37, 264}) {
    const Tensor x_values = random({4500, columns}, at::kBFloat16), dy_values = random({4500, columns}, at::kBFloat16);
    const Tensor means = at::randn({4500}), rstds = at::rand({4500});
    expect_as_reference(1e-4, [&](bool ours) {
      const Tensor x = placed(ours, x_values), dy = placed(ours, dy_values);
      const Tensor mean = placed(ours, means), rstd = placed(ours, rstds);
      const Tensor dweight = at::zeros({columns}, mean.options()), dbias = at::zeros({columns}, mean.options());
      NormBackward args{at::kBFloat16, 4500, columns, data_of(dy), data_of(x)};
      args.mean = data_of(mean), args.rstd = data_of(rstd), args.dweight = data_of(dweight),
      args.dbias = data_of(dbias);
      const Tensor workspace = at::full({target::norm_workspace(4500, columns)}, NAN, mean.options());
      ours ? target::norm_backward(args, data_of(workspace), nullptr) : ref::norm_backward(args);
      return Tensors{dweight, dbias};
    });
  }
}

TEST(CudaKernels, DropoutMaskIsTheReferences) {
  const NormArrays data(at::kFloat, {9, 130});
  const Tensor ours = data.run(true, true)[1].cpu(), reference = data.run(false, true)[1];
  EXPECT_TRUE(at::equal(ours.eq(data.residual), reference.eq(data.residual)));
  EXPECT_NEAR(ours.eq(data.residual).to(at::kFloat).mean().item<float>(), 0.3, 0.06);
}

TEST(CudaKernels, LargeMeanCostsNoDigits) {
  NormArrays data(at::kFloat, {2, 5000, true, false});
  data.x = data.x / 2 + 1e4;
  Tensors ours = data.run(true, false);
  for (Tensor& t : ours) t = placed(false, t);
  const Tensor x = data.x.to(at::kDouble), rstd = (x.var(1, false) + 1e-5).rsqrt();
  EXPECT_TRUE(at::allclose(ours[2].to(at::kDouble), rstd, 1e-5, 0));
  // The mean itself is rounded to half a unit in the last place of 1e4.
  EXPECT_LT((ours[0] - (x - x.mean(1, true)) * rstd.unsqueeze(1)).abs().max().item<double>(), 6e-4);
}

namespace {

/// What is written behind the last element of a block: 0.
void clear_behind(const Tensor& codes, int64_t size) {
  for (int64_t i = size; i < (size + 127) / 128 * 128; ++i) {
    codes.data_ptr<uint8_t>()[i / 128 * 64 + i % 64] &= i % 128 < 64 ? 0xF0 : 0x0F;
  }
}

/// 18 tensors, more than one launch takes: weights in bf16, gradients, and state in fp32 or in codes with scales.
struct OptimizerArrays {
  OptimizerArrays(bool ours, LowBit bits) {
    at::manual_seed(4);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t size = i == 9 ? 4200 : i * 75;  // more than a block of threads takes
      params.push_back(random({size}, at::kBFloat16));
      grads.push_back(random({size}, at::kFloat));
      if (i == 7) grads.back()[300] = HUGE_VAL;  // that element alone is left out
      for (int k = 0; k < 2; ++k) {
        states.push_back(bits == LowBit::none ? random({size}, at::kFloat).abs()
                                              : at::randint(1, 256, {(size + 255) / 256 * 256}, at::kByte));
        if (bits == LowBit::int4) clear_behind(states.back(), size);
        scales.push_back(at::rand({(size + 127) / 128}) + 0.1);
      }
    }
    for (Tensors* list : {&params, &grads, &states, &scales}) {
      for (Tensor& t : *list) t = placed(ours, t);
    }
  }
  template <class Rule>
  std::vector<StepTensor<Rule>> steps(const Rule& rule) const {
    std::vector<StepTensor<Rule>> result(count);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = {.size = params[i].numel(), .param = params[i].data_ptr(), .grad = grads[i].data_ptr()};
      for (size_t k = 0; k < static_cast<size_t>(rule.states()); ++k) {
        result[i].state[k] = states[i * 2 + k].data_ptr();
        result[i].scale[k] = scales[i * 2 + k].data_ptr<float>();
      }
      result[i].rounding_seed = i;
      result[i].rule = rule;
    }
    return result;
  }
  Tensors all() const { return {at::cat(params), at::cat(scales), at::cat(states)}; }

  static constexpr int64_t count = 18;
  Tensors params, grads, states, scales;
};

template <class Rule>
void expect_step_as_reference(const Rule& rule, LowBit bits, bool stochastic = false) {
  SCOPED_TRACE(c10::str(typeid(Rule).name(), " ", static_cast<int>(bits), " ", stochastic));
  StepTypes types{Type::bf16, Type::f32, Type::f32, bits, stochastic};
  expect_as_reference(1e-6, [&](bool ours) {
    const OptimizerArrays arrays(ours, bits);
    const auto steps = arrays.steps(rule);
    ours ? target::step(std::span<const StepTensor<Rule>>(steps), types, {}, nullptr) : ref::step(steps, types);
    return arrays.all();
  });
}

const AdamRule adam{
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .step = 3, .decoupled = true};

}  // namespace

TEST(CudaKernels, OptimizersEqualTheReference) {
  expect_step_as_reference(adam, LowBit::none);
  expect_step_as_reference(adam, LowBit::none, /*stochastic=*/true);
  expect_step_as_reference(adam, LowBit::int8);
  expect_step_as_reference(adam, LowBit::int4);
  expect_step_as_reference(SgdRule{.lr = 1e-2, .momentum = 0.9}, LowBit::int8);
  expect_step_as_reference(LionRule{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99}, LowBit::int4, /*stochastic=*/true);
}

TEST(CudaKernels, OptimizersTakeScalarsOfTheDevice) {
  const Tensor scalars = placed(true, at::tensor({0.5F, 4.F, 1.F, 3.F}));
  const float *lr = scalars.data_ptr<float>(), *scale = lr + 1, *found = lr + 2, *number = lr + 3;
  for (const LowBit bits : {LowBit::none, LowBit::int8}) {
    const StepTypes types{Type::bf16, Type::f32, Type::f32, bits};
    AdamRule late = adam;
    late.step = 1;
    const OptimizerArrays ours(true, bits), reference(false, bits), untouched(true, bits), before(true, bits);
    auto steps = ours.steps(late);
    for (auto& step : steps) step.device_step = number;
    target::step(std::span<const StepTensor<AdamRule>>(steps), types, {lr, scale}, nullptr);
    AdamRule same = adam;
    same.lr = 0.5F;
    same.grad_factor = 0.25;
    ref::step(reference.steps(same), types);
    EXPECT_TRUE(at::allclose(at::cat(ours.params).cpu(), at::cat(reference.params), 0, 0, /*equal_nan=*/true));
    target::step(std::span<const StepTensor<AdamRule>>(untouched.steps(adam)), types, {nullptr, nullptr, found},
                 nullptr);
    EXPECT_TRUE(at::equal(at::cat(untouched.params), at::cat(before.params)));
    EXPECT_TRUE(at::equal(at::cat(untouched.states), at::cat(before.states)));
  }
}

}  // namespace bellows::kernels
