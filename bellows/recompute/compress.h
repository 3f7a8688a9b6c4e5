#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

/// How activations are kept.
enum class ActivationBits {
  bf16,  ///< rounded to nearest: half of fp32
  int8,  ///< about a quarter of fp32, half of 16-bit values
  int4,  ///< about an eighth and a quarter
};

struct CompressOptions {
  ActivationBits bits = ActivationBits::int8;
  int64_t group = 256;      ///< values that share a range; a multiple of 32 from 32 to 1024
  int64_t min_size = 4096;  ///< elements; smaller tensors stay as they are
  /// Of the random rounding. None: from the seed of libtorch's CPU generator and the number of such guards before, so
  /// that a program that is started again rounds the same way.
  std::optional<uint64_t> seed;
  /// What lives anyway and requires no gradient: frozen weights, buffers. Tensors in their memory stay as they are.
  std::vector<at::Tensor> leave = {};
};

/// What compression saved so far.
struct CompressedBytes {
  int64_t before = 0, after = 0;
};

/// While the guard lives on a thread, floating-point tensors that autograd saves for backward are kept in fewer bits;
/// backward gets them in their own dtype and strides again. Put it around the forward pass. The loss does not change,
/// gradients do.
///
/// Left alone: what the tap leaves alone (parameters that require gradients), what `leave` names, small tensors, integers and booleans (indices of max pooling,
/// masks), float64, and what would not become smaller. On other devices than the CPU int8 and int4 become bf16. What is
/// left, and the codes themselves, are offered to the guards around this one: within an `offload` guard codes are
/// offloaded. Values that are not finite come back not finite, so that a loss scaler still sees them.
/// Numerics: int8 and int4 as kernels::encode_groups: unbiased, errors below (largest − smallest of a group) / 254 or 14, ReLU's
///           masks exact. Gradients have a bias where backward multiplies two rounded values (norms, attention)
///           (tests/recompute/compress_test.cpp)
/// Cost:     reads each tensor once, writes and reads the codes; backward writes it once for those places that saved it
///           and want it one after the other
/// Threads:  sees the thread that makes it; make and destroy it on one thread
/// Throws:   c10::ValueError – group or min_size out of range
/// Ref:      arXiv:2104.14129 (ActNN), arXiv:2206.11357 (GACT)
class compress {
 public:
  explicit compress(const CompressOptions& options = {});
  ~compress();
  compress(const compress&) = delete;
  compress& operator=(const compress&) = delete;

  CompressedBytes bytes() const;

 private:
  class Tap;
  std::shared_ptr<Tap> tap_;
  tap::SavedTensorGuard guard_;
};

}  // namespace bellows::recompute
