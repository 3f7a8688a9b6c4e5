#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace bellows::graph {

/// All properties of a plain tensor (see is_plain()) except its data.
struct Geometry {
  using Numbers = c10::SmallVector<int64_t, 4>;

  Numbers sizes, strides;
  int64_t offset = 0;  ///< position of the first element in the buffer, in elements
  caffe2::TypeMeta dtype{};
  c10::Device device = c10::kCPU;
  /// Dispatch keys. They state the device, whether the tensor is an autograd or an inference tensor, and whether its
  /// conjugate bit is set.
  c10::DispatchKeySet keys{};
  bool wrapped_number = false;

  static Geometry of(const at::Tensor& tensor);
  bool fits(const at::Tensor& tensor) const { return fits(*tensor.unsafeGetTensorImpl()); }
  bool fits(const c10::TensorImpl& impl) const;
  bool operator==(const Geometry& other) const;
  /// Returns whether elements are row-major without gaps.
  bool is_contiguous() const;
  /// Returns the number of bytes from the beginning of the buffer to the end of the last element. Returns SIZE_MAX if
  /// this number, or the number of elements, exceeds 64 bits.
  size_t reach() const;
  /// Creates a tensor with this geometry over a storage.
  at::Tensor over(c10::Storage storage) const;
  /// Does the same for a tensor that has a version counter only if `counted`. The constructor of a tensor decides on its
  /// own whether the tensor has one.
  at::Tensor over(c10::Storage storage, bool counted) const;
  /// Returns a string such as "f32[8, 4]". It includes strides if the tensor is not contiguous, and the offset if the
  /// offset is not 0.
  std::string text() const;
  /// Describes how `tensor` differs from this geometry, for use in messages: "sizes [2] instead of [3]". Returns an
  /// empty string if the tensor fits.
  std::string difference(const at::Tensor& tensor) const;
};

/// Returns whether a tensor consists only of a geometry and a storage on a CPU or CUDA device. Sparse, quantized,
/// nested and oneDNN tensors are not plain. Tensors with names, tensors without data, and wrappers of other tensors are
/// not plain either.
bool is_plain(const at::Tensor& tensor);

}  // namespace bellows::graph
