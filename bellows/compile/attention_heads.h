#pragma once

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

/// Whether the operand is an fp32 tensor with four dims on the CPU whose rows have adjacent elements.
inline bool has_fp32_heads(const graph::Operand& one) {
  const graph::Geometry& seen = one.geometry;
  return one.value >= 0 && seen.device.is_cpu() && seen.dtype == caffe2::TypeMeta::Make<float>() &&
         seen.sizes.size() == 4 && (seen.strides[3] == 1 || seen.sizes[3] == 1);
}

}  // namespace bellows::compile_detail
