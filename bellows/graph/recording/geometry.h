#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace bellows::graph {

/// Everything about a plain tensor but its data.
struct Geometry {
  using Numbers = c10::SmallVector<int64_t, 4>;

  Numbers sizes, strides;
  int64_t offset = 0;  ///< in elements, of the first one in its buffer
  caffe2::TypeMeta dtype{};
  c10::Device device = c10::kCPU;
  c10::DispatchKeySet keys{};  ///< what kind of tensor it is: device, autograd or inference tensor, conjugate bit
  bool wrapped_number = false;

  static Geometry of(const at::Tensor& tensor);
  bool fits(const at::Tensor& tensor) const;
  bool operator==(const Geometry& other) const;
  /// Row-major, without gaps.
  bool is_contiguous() const;
  /// Bytes from the beginning of the buffer to the end of the last element; SIZE_MAX where 64 bits do not count them, or the elements.
  size_t reach() const;
  /// A tensor of this kind.
  at::Tensor over(c10::Storage storage) const;
  /// "f32[8, 4]", with strides where they are not those of a contiguous tensor, and an offset if there is one.
  std::string text() const;
  /// What `tensor` has that differs, for messages: "sizes [2] instead of [3]"; "" when it fits.
  std::string difference(const at::Tensor& tensor) const;
};

/// A tensor that is nothing but a geometry over a storage, on a CPU or a CUDA device: not sparse, quantized, nested, of oneDNN's
/// layout, named, without data, or a wrapper of another tensor.
bool is_plain(const at::Tensor& tensor);

}  // namespace bellows::graph
