// Batch norm over rows: each instruction set against the reference, and its precision.
#include "bellows/kernels/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

#include "bellows/kernels/parallel.h"
#include "tests/nn/targets.h"

namespace bellows::kernels {
namespace {

struct RowsOfChannels {
  int64_t rows, channels;
};

/// Sizes around those of vectors, groups of rows, parts and chunks.
const std::vector<RowsOfChannels> norm_sizes{{1, 1},    {2, 3},    {4, 16},   {5, 17},    {63, 33},   {64, 64},
                                             {65, 130}, {700, 96}, {9001, 5}, {2049, 65}, {1003, 24}, {70, 3}};

struct NormCase {
  at::ScalarType dtype = at::kFloat;
  bool affine = true, relu = false;
};
const std::vector<NormCase> norm_cases{{},
                                       {.affine = false},
                                       {.relu = true},
                                       {.affine = false, .relu = true},
                                       {.dtype = at::kBFloat16, .relu = true},
                                       {.dtype = at::kBFloat16}};

struct NormResults {
  at::Tensor y, mean, variance, invstd, dx, dweight, dbias;
};

class NormOfRows {
 public:
  NormOfRows(const RowsOfChannels& size, const NormCase& which) : size_(size), which_(which) {
    x = (at::randn({size.rows, size.channels}) * 2 + 3).to(which.dtype);
    dy = at::randn({size.rows, size.channels}).to(which.dtype);
    if (!which.affine) return;
    weight = at::randn({size.channels}) + 0.1;
    bias = at::randn({size.channels});
  }

  template <class Forward, class Backward>
  NormResults run(Forward forward, Backward backward) const {
    const auto vector = [&] { return at::full({size_.channels}, -7, at::kFloat); };
    NormResults made{at::full_like(x, -7), vector(), vector(), vector(), at::full_like(x, -7), vector(), vector()};
    const auto bytes = static_cast<int64_t>(batch_norm_scratch_bytes(size_.rows, size_.channels));
    const at::Tensor scratch = at::full({bytes}, 0x55, at::kByte);
    const auto floats = [](const at::Tensor& of) { return of.defined() ? of.data_ptr<float>() : nullptr; };
    forward({.dtype = which_.dtype,
             .rows = size_.rows,
             .channels = size_.channels,
             .relu = which_.relu,
             .x = x.data_ptr(),
             .weight = floats(weight),
             .bias = floats(bias),
             .y = made.y.data_ptr(),
             .mean = floats(made.mean),
             .variance = floats(made.variance),
             .invstd = floats(made.invstd),
             .scratch = scratch.data_ptr()});
    scratch.fill_(0x55);
    backward({.dtype = which_.dtype,
              .rows = size_.rows,
              .channels = size_.channels,
              .relu = which_.relu,
              .dy = dy.data_ptr(),
              .x = x.data_ptr(),
              .weight = floats(weight),
              .bias = floats(bias),
              .mean = floats(made.mean),
              .invstd = floats(made.invstd),
              .dx = made.dx.data_ptr(),
              .dweight = floats(made.dweight),
              .dbias = floats(made.dbias),
              .scratch = scratch.data_ptr()});
    return made;
  }
  NormResults fast() const { return run(batch_norm_forward, batch_norm_backward); }
  NormResults expected() const { return run(ref::batch_norm_forward, ref::batch_norm_backward); }

  at::Tensor x, dy, weight, bias;

 private:
  RowsOfChannels size_;
  NormCase which_;
};

/// Expects equality up to a tolerance relative to the largest value.
void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance, const char* what) {
  const double largest = std::max(1.0, expected.to(at::kDouble).abs().max().item<double>());
  const double error = (found.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(error, tolerance * largest) << what;
}

void expect_like_reference(const RowsOfChannels& size, const NormCase& which) {
  NormOfRows norm(size, which);
  // The sign of values close to 0 depends on rounding, and decides whether a gradient passes.
  if (which.relu) norm.dy.masked_fill_(norm.expected().y.to(at::kFloat).lt(1e-2), 0);
  const NormResults found = norm.fast(), expected = norm.expected();
  // With few rows, 1/std can be large, and multiplies the rounding of the mean.
  const double of_rows = size.rows < 8 ? 2e-5 : 3e-6, of_sums = 3e-6;
  const double of_elements = which.dtype == at::kFloat ? of_rows : 8e-3;
  expect_near(found.y, expected.y, of_elements, "y");
  expect_near(found.mean, expected.mean, of_sums, "mean");
  expect_near(found.variance, expected.variance, of_sums, "variance");
  expect_near(found.invstd, expected.invstd, 1e-5, "invstd");
  expect_near(found.dx, expected.dx, size.rows > 1 ? 2 * of_elements : 1e-3, "dx");
  expect_near(found.dweight, expected.dweight, 2e-5, "dweight");
  expect_near(found.dbias, expected.dbias, 1e-5, "dbias");
}

TEST(BatchNormKernel, MatchesReference) {
  torch::manual_seed(1);
  nn::for_each_target([&] {
    for (size_t i = 0; i < norm_cases.size(); ++i) {
      for (const RowsOfChannels& size : norm_sizes) {
        SCOPED_TRACE(c10::str("case ", i, ": ", size.rows, " x ", size.channels));
        expect_like_reference(size, norm_cases[i]);
      }
    }
  });
}

TEST(BatchNormKernel, PrecisionDoesNotDependOnTheNumberOfRowsOrTheMean) {
  torch::manual_seed(2);
  for (const double mean : {3.0, 1000.0}) {
    NormOfRows norm({1 << 20, 3}, {.affine = false});
    norm.x = at::randn({1 << 20, 3}) + mean;
    const NormResults found = norm.fast(), expected = norm.expected();
    expect_near(found.variance, expected.variance, 1e-6, "variance");
    EXPECT_LE((found.mean - expected.mean).abs().max().item<double>(), 1e-7 * mean);
    expect_near(found.y, expected.y, mean > 100 ? 3e-5 : 1e-6, "y");  // a mean of 1000 is rounded to 3e-5
  }
}

TEST(BatchNormKernel, ThreadsDoNotMatter) {
  torch::manual_seed(3);
  const NormOfRows norm({3001, 130}, {.relu = true});
  const NormResults all = norm.fast();
  const auto expect_equal = [&](const NormResults& other) {
    EXPECT_TRUE(other.y.equal(all.y) && other.dx.equal(all.dx) && other.dweight.equal(all.dweight));
  };
  with_work_stealing([&] { expect_equal(norm.fast()); });
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  expect_equal(norm.fast());
  at::set_num_threads(threads);
}

TEST(BatchNormKernel, KeepsNan) {
  torch::manual_seed(4);
  NormOfRows norm({100, 20}, {.relu = true});
  norm.x[50][7] = std::numeric_limits<float>::quiet_NaN();
  const NormResults found = norm.fast();
  EXPECT_TRUE(found.y.select(1, 7).isnan().all().item<bool>());
  EXPECT_TRUE(found.dx.select(1, 7).isnan().all().item<bool>());
  EXPECT_EQ(found.y.isnan().sum().item<int64_t>(), 100);
}

}  // namespace
}  // namespace bellows::kernels
