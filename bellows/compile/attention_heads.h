#pragma once

#include <cmath>

#include "bellows/graph/program/program.h"
#include "bellows/kernels/attention.h"

namespace bellows::compile_detail {

/// The heads of a tensor [batch, heads, rows, width].
template <class T>
kernels::Matrices<T> heads_of(const graph::Geometry& seen, void* memory = nullptr) {
  return {.data = memory ? static_cast<T*>(memory) + seen.offset : nullptr,
          .outer = seen.strides[0],
          .inner = seen.strides[1],
          .inner_size = seen.sizes[1],
          .row = seen.strides[2],
          .column = seen.strides[3]};
}

/// The factor of the logits: an argument of the operator, or by default 1 / √width.
inline double logit_factor(const c10::IValue& argument, int64_t width) {
  return argument.isNone() ? 1 / std::sqrt(static_cast<double>(width)) : argument.toDouble();
}

/// Whether the operand is an fp32 tensor with four dims on the CPU whose rows have adjacent elements.
inline bool has_fp32_heads(const graph::Operand& one) {
  const graph::Geometry& seen = one.geometry;
  return one.value >= 0 && seen.device.is_cpu() && seen.dtype == caffe2::TypeMeta::Make<float>() &&
         seen.sizes.size() == 4 && (seen.strides[3] == 1 || seen.sizes[3] == 1);
}

}  // namespace bellows::compile_detail
