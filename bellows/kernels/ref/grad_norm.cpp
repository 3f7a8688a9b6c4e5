#include "bellows/kernels/ref/grad_norm.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

namespace bellows::kernels::ref {

namespace {

template <class T>
double add_to(double sum, const NormTensor& tensor, NormSum what) {
  for (int64_t i = 0; i < tensor.size; ++i) {
    const auto x = std::abs(static_cast<double>(static_cast<const T*>(tensor.data)[i]));
    if (what == NormSum::max_abs) {
      if (x > sum || std::isnan(x)) sum = x;
    } else {
      sum += what == NormSum::abs ? x : x * x;
    }
  }
  return sum;
}

}  // namespace

double norm_sum(std::span<const NormTensor> tensors, NormSum what) {
  double sum = 0;
  for (const NormTensor& tensor : tensors) {
    switch (tensor.type) {
      case Type::f32:
        sum = add_to<float>(sum, tensor, what);
        break;
      case Type::f64:
        sum = add_to<double>(sum, tensor, what);
        break;
      case Type::bf16:
        sum = add_to<c10::BFloat16>(sum, tensor, what);
        break;
      case Type::f16:
        sum = add_to<c10::Half>(sum, tensor, what);
        break;
    }
  }
  return sum;
}

void scale(std::span<const ScaleTensor> tensors, double factor) {
  for (const ScaleTensor& tensor : tensors) {
    for (int64_t i = 0; i < tensor.size; ++i) {
      if (tensor.type == Type::f64) {
        static_cast<double*>(tensor.data)[i] *= factor;
      } else {
        static_cast<float*>(tensor.data)[i] *= static_cast<float>(factor);
      }
    }
  }
}

}  // namespace bellows::kernels::ref
