// Matmuls with a packed matrix: SIMD code against the reference, and against libtorch's matmul in double.
#include "bellows/kernels/packed_matmul.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace bellows::kernels {
namespace {

struct PackedCase {
  int64_t rows, inner, columns;
};

/// Sizes around those of tiles, vectors and panels.
const std::vector<PackedCase> packed_cases{{1, 1, 1},    {1, 51, 204},  {2, 3, 31},     {3, 17, 33},   {5, 64, 16},
                                           {6, 8, 64},   {11, 9, 129},  {12, 128, 96},  {13, 5, 15},   {20, 200, 800},
                                           {32, 51, 51}, {31, 7, 1000}, {64, 128, 384}, {140, 1000, 8}};

/// Relative to the largest sum of absolute products: the rounding of sums in fp32, and one rounding in other types.
double tolerance_of(c10::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-14;
    case at::kBFloat16:
      return 1.0 / 256;
    case at::kHalf:
      return 1.0 / 2048;
    default:
      return 2e-6;
  }
}

enum class Version { simd, reference };

at::Tensor product(Version version, const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias,
                   const at::Tensor& added = {}) {
  const auto type = left.scalar_type();
  const int64_t rows = left.size(0), inner = left.size(1), columns = right.size(1);
  const auto bytes = [](size_t count) { return at::empty({static_cast<int64_t>(count)}, at::kByte); };
  // Filled with NaN, so that each element that is read must have been written.
  const at::Tensor packed = bytes(packed_bytes(type, inner, columns)).fill_(0xff),
                   scratch = bytes(packed_matmul_scratch_bytes(type, rows, inner)).fill_(0xff);
  const at::Tensor result = at::full({rows, columns}, NAN, left.options());
  const MatrixToPack matrix{
      type, inner, columns, right.stride(0), right.stride(1), right.data_ptr(), packed.data_ptr()};
  const PackedMatmul matmul{.dtype = type,
                            .rows = rows,
                            .inner = inner,
                            .columns = columns,
                            .left_row = left.stride(0),
                            .left_column = left.stride(1),
                            .left = left.data_ptr(),
                            .packed = packed.data_ptr(),
                            .bias = bias.defined() ? bias.data_ptr() : nullptr,
                            .added = added.defined() ? added.data_ptr() : nullptr,
                            .result = result.data_ptr(),
                            .scratch = scratch.data_ptr()};
  if (version == Version::simd) {
    pack_matrix(matrix);
    packed_matmul(matmul);
  } else {
    ref::pack_matrix(matrix);
    ref::packed_matmul(matmul);
  }
  return result;
}

class PackedMatmulTest : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(PackedMatmulTest, EqualsTheReferenceAndLibtorch) {
  torch::manual_seed(5);
  for (const PackedCase& one : packed_cases) {
    for (const bool transposed : {false, true}) {
      for (const bool adds : {false, true}) {
        const at::TensorOptions options(GetParam());
        const auto matrix = [&](int64_t rows, int64_t columns) {
          return transposed ? at::randn({columns, rows}).to(options).t() : at::randn({rows, columns}).to(options);
        };
        const at::Tensor left = matrix(one.rows, one.inner), right = matrix(one.inner, one.columns);
        const at::Tensor bias = adds ? at::randn({one.columns}).to(options) : at::Tensor();
        at::Tensor exact = at::mm(left.to(at::kDouble), right.to(at::kDouble));
        if (adds) exact = exact + bias.to(at::kDouble);
        const double scale = at::mm(left.abs().to(at::kDouble), right.abs().to(at::kDouble)).max().item<double>() + 1;
        for (const Version version : {Version::simd, Version::reference}) {
          const double error = (product(version, left, right, bias).to(at::kDouble) - exact).abs().max().item<double>();
          EXPECT_LE(error, tolerance_of(GetParam()) * scale)
              << one.rows << "x" << one.inner << "x" << one.columns << " transposed " << transposed << " bias " << adds
              << (version == Version::simd ? " SIMD" : " reference");
        }
      }
    }
  }
}

TEST_P(PackedMatmulTest, HasTheSameBitsOnOneThread) {
  torch::manual_seed(5);
  const at::Tensor left = at::randn({64, 300}).to(GetParam()), right = at::randn({300, 1000}).to(GetParam());
  const at::Tensor many = product(Version::simd, left, right, {});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = product(Version::simd, left, right, {});
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(many, one));
}

TEST_P(PackedMatmulTest, RowsDoNotDependOnOtherRows) {
  torch::manual_seed(5);
  const int64_t rows = 130;  // several parts of the left matrix
  const at::Tensor left = at::randn({rows, 1100}).to(GetParam()), right = at::randn({1100, 40}).to(GetParam()),
                   bias = at::randn({40}).to(GetParam()), added = at::randn({rows, 40}).to(GetParam());
  const at::Tensor all = product(Version::simd, left, right, bias, added);
  for (const int64_t count : {1, 2, 5, 26, 65}) {
    for (int64_t row = 0; row + count <= rows; row += count) {
      const at::Tensor some =
          product(Version::simd, left.narrow(0, row, count), right, bias, added.narrow(0, row, count));
      ASSERT_TRUE(at::equal(some, all.narrow(0, row, count))) << "rows " << row << " to " << row + count;
    }
  }
}

TEST_P(PackedMatmulTest, AddsAMatrix) {
  torch::manual_seed(5);
  const at::Tensor left = at::randn({19, 900}).to(GetParam()), right = at::randn({900, 45}).to(GetParam()),
                   bias = at::randn({45}).to(GetParam()), added = at::randn({19, 45}).to(GetParam());
  const at::Tensor exact =
      left.to(at::kDouble).mm(right.to(at::kDouble)) + bias.to(at::kDouble) + added.to(at::kDouble);
  const double scale = left.abs().to(at::kDouble).mm(right.abs().to(at::kDouble)).max().item<double>();
  for (const Version version : {Version::simd, Version::reference}) {
    const at::Tensor made = product(version, left, right, bias, added).to(at::kDouble);
    EXPECT_LE((made - exact).abs().max().item<double>(), tolerance_of(GetParam()) * scale);
  }
}

TEST_P(PackedMatmulTest, PropagatesNanAndInfinity) {
  at::Tensor left = at::ones({3, 5}).to(GetParam()), right = at::ones({5, 33}).to(GetParam());
  left[0][1] = NAN;
  right[2][32] = INFINITY;
  const at::Tensor made = product(Version::simd, left, right, {});
  EXPECT_TRUE(made[0].isnan().all().item<bool>());
  EXPECT_TRUE(made.slice(0, 1).select(1, 32).isinf().all().item<bool>());
  EXPECT_TRUE(at::equal(made.slice(0, 1).slice(1, 0, 32), at::full({2, 32}, 5, left.options())));
}

INSTANTIATE_TEST_SUITE_P(Types, PackedMatmulTest, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& one) { return std::string(c10::toString(one.param)); });

}  // namespace
}  // namespace bellows::kernels
