#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/kernels/layer_norm.h"
#include "bellows/system/machine.h"
#include "tests/nn/targets.h"

namespace bellows::nn {

namespace {

using kernels::NormBackward;
using kernels::NormForward;

struct KernelShape {
  int64_t rows, columns;
};

const std::vector<KernelShape> kernel_shapes = {{0, 5},     {1, 1},     {3, 1},   {1, 0},   {2, 15},
                                                {5, 16},    {7, 17},    {33, 63}, {3, 130}, {100, 96},
                                                {1, 10007}, {130, 257}, {65, 768}};

/// All that one forward and one backward pass read and write.
struct NormData {
  NormData(at::ScalarType dtype_, KernelShape shape_, bool center_, bool affine, uint64_t seed = 1)
      : dtype(dtype_), shape(shape_), center(center_) {
    at::manual_seed(seed);
    const at::ScalarType sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const std::vector<int64_t> sizes = {shape.rows, shape.columns};
    x = (torch::randn(sizes, at::kDouble) * 2 + 3).to(dtype);
    dy = torch::randn(sizes, at::kDouble).to(dtype);
    if (affine) {
      weight = torch::randn({shape.columns}, sums);
      bias = torch::randn({shape.columns}, sums);
    }
    y = torch::full_like(x, -7);
    dx = torch::full_like(x, -7);
    mean = torch::full({shape.rows}, -7, sums);
    rstd = torch::full({shape.rows}, -7, sums);
    dweight = torch::full({shape.columns}, -7, sums);
    dbias = torch::full({shape.columns}, -7, sums);
  }

  static void* pointer(const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }
  NormForward forward() const {
    return {dtype,         shape.rows, shape.columns,
            1e-5,          pointer(x), pointer(weight),
            pointer(bias), pointer(y), center ? pointer(mean) : nullptr,
            pointer(rstd)};
  }
  NormBackward backward() const {
    return {dtype,
            shape.rows,
            shape.columns,
            pointer(dy),
            pointer(x),
            pointer(weight),
            center ? pointer(mean) : nullptr,
            pointer(rstd),
            pointer(dx),
            pointer(dweight),
            pointer(dbias)};
  }
  void run() const {
    kernels::norm_forward(forward());
    kernels::norm_backward(backward());
  }
  std::vector<at::Tensor> results() const { return {y, mean, rstd, dx, dweight, dbias}; }

  at::ScalarType dtype;
  KernelShape shape;
  bool center;
  at::Tensor x, dy, weight, bias, y, dx, mean, rstd, dweight, dbias;
};

/// A unit in the last place of results of order 1, with what sums of some hundred terms lose.
double kernel_tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-11;
    case at::kFloat:
      return 3e-5;
    case at::kHalf:
      return 1.5e-3;
    default:
      return 1e-2;
  }
}

void expect_equals_reference(at::ScalarType dtype, KernelShape shape, bool center, bool affine) {
  SCOPED_TRACE(
      c10::str(dtype, " ", shape.rows, " x ", shape.columns, center ? " layer" : " rms", affine ? " affine" : ""));
  const NormData ours(dtype, shape, center, affine), reference(dtype, shape, center, affine);
  ours.run();
  kernels::ref::norm_forward(reference.forward());
  // From the same statistics, so that only the backward pass is compared.
  kernels::ref::norm_backward(reference.backward());
  const auto a = ours.results(), b = reference.results();
  const double tolerance = kernel_tolerance(dtype);
  for (size_t i = 0; i < a.size(); ++i) {
    const double scale = i >= 4 ? std::sqrt(static_cast<double>(shape.rows) + 1) : 1;
    EXPECT_TRUE(at::allclose(a[i].to(at::kDouble), b[i].to(at::kDouble), tolerance, tolerance * scale, /*nan=*/true))
        << "result " << i;
  }
}

}  // namespace

TEST(NormKernel, EqualsTheReferenceOnEveryTarget) {
  for_each_target([] {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const KernelShape shape : kernel_shapes) {
        for (const bool center : {true, false}) expect_equals_reference(dtype, shape, center, true);
      }
      expect_equals_reference(dtype, {7, 17}, true, false);
      expect_equals_reference(dtype, {7, 17}, false, false);
    }
  });
}

TEST(NormKernel, ThreadsDoNotChangeTheBits) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<std::vector<at::Tensor>> results;
    for (const int count : {1, 2, 3}) {
      at::set_num_threads(count);
      const NormData data(dtype, {1000, 257}, true, true);
      data.run();
      results.push_back(data.results());
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(torch::equal(results[0][i], results[1][i])) << i;
      EXPECT_TRUE(torch::equal(results[0][i], results[2][i])) << i;
    }
  }
  at::set_num_threads(threads);
}

TEST(NormKernel, LargeMeanCostsNoDigits) {
  for (const int64_t columns : {768, 50000}) {
    NormData data(at::kFloat, {2, columns}, true, false), exact(at::kDouble, {2, columns}, true, false);
    data.x.copy_((data.x - 3) / 2 + 1e4);
    exact.x.copy_(data.x);
    data.run();
    kernels::ref::norm_forward(exact.forward());
    // Rounding the mean to fp32 costs half a unit in the last place of 1e4: 5e-4 of the standard deviation of 1. Its sum is rounded,
    // too: AVX2 adds up twice as many values in each lane as AVX-512 does, and came to 7.2e-4.
    EXPECT_TRUE(at::allclose(data.rstd.to(at::kDouble), exact.rstd, 1e-5, 0));
    EXPECT_LT((data.y.to(at::kDouble) - exact.y).abs().max().item<double>(),
              this_machine().has("avx512f") ? 6e-4 : 1e-3);
  }
}

TEST(NormKernel, RoundsToNearestEvenAndKeepsNan) {
  // One value a row: RMSNorm without eps gives the sign times the weight, which is then rounded.
  const std::vector<float> weights = {1.00390625f, 1.01171875f, 1.0039063f, 3.4e38f, 1e-40f, -1.00390625f};
  const auto columns = static_cast<int64_t>(weights.size());
  at::Tensor x = torch::ones({1, columns}, at::kBFloat16), y = torch::empty_like(x), rstd = torch::empty({1});
  const at::Tensor weight = torch::tensor(weights);
  NormForward args{at::kBFloat16,     1,       columns,      1e-30,   x.data_ptr(),
                   weight.data_ptr(), nullptr, y.data_ptr(), nullptr, rstd.data_ptr()};
  for_each_target([&] {
    kernels::norm_forward(args);
    EXPECT_TRUE(torch::equal(y[0], weight.to(at::kBFloat16))) << y << weight.to(at::kBFloat16);
  });
  x[0][2] = std::nanf("");
  kernels::norm_forward(args);
  EXPECT_TRUE(y.isnan().all().item<bool>());
}

TEST(NormKernel, GradientsThatNobodyWantsAreNotWritten) {
  for (const int wanted : {0, 1, 2, 3}) {
    const NormData data(at::kFloat, {20, 17}, true, true);
    kernels::norm_forward(data.forward());
    NormBackward args = data.backward();
    if (wanted != 1) args.dx = nullptr;
    if (wanted != 2) args.dweight = nullptr;
    if (wanted != 3) args.dbias = nullptr;
    kernels::norm_backward(args);
    const NormData all(at::kFloat, {20, 17}, true, true);
    all.run();
    const auto expect = [](const at::Tensor& ours, const at::Tensor& reference, bool on) {
      EXPECT_TRUE(torch::equal(ours, on ? reference : torch::full_like(ours, -7)));
    };
    expect(data.dx, all.dx, wanted == 1);
    expect(data.dweight, all.dweight, wanted == 2);
    expect(data.dbias, all.dbias, wanted == 3);
  }
}

}  // namespace bellows::nn
