#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::tap {

/// While an object of this class exists, `uniform_`, `normal_`, `random_`, `bernoulli_`, `fill_` and `zero_` on this
/// thread do not change large CPU tensors (64 KiB or more). Their memory is therefore never touched, and the system does
/// not provide it. Load all weights afterwards. Large tensors that no file contains, such as masks that the model computes,
/// would have undefined values: create them without such an object, or pass `fills = false`.
/// Changes: the first object permanently replaces libtorch's CPU kernels of these operators in the whole process. Without
///          an object, they behave like libtorch's kernels
/// Cost:    one access to a thread-local variable per call of one of these operators
class SkipInitialization {
 public:
  /// Params: fills – if false, `fill_` and `zero_` work as usual, and only random values are skipped. Masks that the
  ///                 model computes then have their values, but large weights that start as constants need memory
  explicit SkipInitialization(bool fills = true);
  ~SkipInitialization();
  SkipInitialization(const SkipInitialization&) = delete;
  SkipInitialization& operator=(const SkipInitialization&) = delete;

 private:
  bool fills_;
};

/// Whether a kernel that only draws random initial values may leave the tensor unchanged.
bool skips_initialization(const at::Tensor& tensor);

}  // namespace bellows::tap
