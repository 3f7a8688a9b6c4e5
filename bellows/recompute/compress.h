#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

/// The format in which activations are kept.
enum class ActivationBits {
  bf16,  ///< rounded to nearest; half the size of fp32
  int8,  ///< about a quarter of the size of fp32, half that of bf16 and fp16
  int4,  ///< about an eighth of the size of fp32, a quarter of that of bf16 and fp16
};

struct CompressOptions {
  ActivationBits bits = ActivationBits::int8;
  int64_t group = 256;      ///< number of values that share one range; a multiple of 32, from 32 to 1024
  int64_t min_size = 4096;  ///< in elements; smaller tensors are not compressed
  /// Seed of the stochastic rounding. By default, it is derived from the seed of libtorch's CPU generator and the
  /// number of guards created before. Therefore, a restarted program rounds in the same way.
  std::optional<uint64_t> seed;
  /// Tensors that stay in memory anyway and require no gradient, such as frozen weights and buffers. Tensors that share
  /// memory with them are not compressed.
  std::vector<at::Tensor> leave = {};
};

/// Size of the tensors compressed so far, in bytes, before and after compression.
struct CompressedBytes {
  int64_t before = 0, after = 0;
};

/// While this guard exists on a thread, the floating-point tensors that autograd saves for backward are stored with
/// fewer bits. Backward receives them with their original dtype and strides. Create the guard around the forward pass.
/// The loss does not change, but gradients do.
///
/// The guard does not compress parameters that require gradients, other tensors that saved-tensor taps skip
/// (tap/saved_tensor_tap.h), tensors in `leave`, or tensors below `min_size`. Integers and booleans (indices of max
/// pooling, masks), float64, and tensors that would not become smaller are not compressed either. On devices other than
/// the CPU, bf16 replaces int8 and int4. Uncompressed tensors and the compressed codes are passed to the surrounding
/// guards. For example, a surrounding OffloadGuard offloads the codes. Non-finite values stay non-finite, so that a
/// loss scaler detects them.
/// Numerics: int8 and int4 round like kernels::quantize_groups: without bias, with errors below range / 254 (int8) and
///           range / 14 (int4). The range is the maximum minus the minimum of a group. ReLU's masks stay exact.
///           Gradients are biased where backward multiplies two rounded values (norms, attention)
///           (tests/recompute/compress_test.cpp).
/// Cost:     each tensor is read once, and its compressed codes are written once and read in backward. If consecutive
///           nodes saved the same tensor, backward decodes the tensor only once.
/// Threads:  affects the thread that creates the guard; create and destroy it on the same thread
/// Throws:   c10::ValueError if `group` or `min_size` is out of range
/// Ref:      arXiv:2104.14129 (ActNN), arXiv:2206.11357 (GACT)
class CompressGuard {
 public:
  explicit CompressGuard(const CompressOptions& options = {});
  ~CompressGuard();
  CompressGuard(const CompressGuard&) = delete;
  CompressGuard& operator=(const CompressGuard&) = delete;

  CompressedBytes bytes() const;

 private:
  class Tap;
  std::shared_ptr<Tap> tap_;
  tap::SavedTensorGuard guard_;
};

}  // namespace bellows::recompute
