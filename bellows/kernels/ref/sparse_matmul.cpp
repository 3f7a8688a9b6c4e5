#include "bellows/kernels/sparse_matmul.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>

#include <type_traits>

namespace bellows::kernels::ref {

namespace {

template <class T>
void multiply(const SparseMatmul& args) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto* const values = static_cast<const T*>(args.values);
  const auto* const dense = static_cast<const T*>(args.dense);
  auto* const out = static_cast<T*>(args.out);
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t column = 0; column < args.columns; ++column) {
      Sum sum = 0;
      for (int64_t k = args.offsets[row]; k < args.offsets[row + 1]; ++k) {
        const int64_t entry = args.order ? args.order[k] : k;
        sum +=
            static_cast<Sum>(values[entry]) * static_cast<Sum>(dense[args.indices[entry] * args.dense_stride + column]);
      }
      out[row * args.columns + column] = static_cast<T>(sum);
    }
  }
}

}  // namespace

void sparse_matmul(const SparseMatmul& args) {
  switch (args.dtype) {
    case c10::ScalarType::Float:
      return multiply<float>(args);
    case c10::ScalarType::Double:
      return multiply<double>(args);
    case c10::ScalarType::BFloat16:
      return multiply<c10::BFloat16>(args);
    default:
      TORCH_CHECK_VALUE(false, "sparse_matmul: expected Float, Double or BFloat16, got ", args.dtype, ".");
  }
}

}  // namespace bellows::kernels::ref
