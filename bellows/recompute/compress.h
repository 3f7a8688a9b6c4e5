#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::recompute {

/// The format in which activations are kept.
enum class ActivationBits {
  bf16,  ///< rounded to nearest; half of fp32
  int8,  ///< about a quarter of fp32, half of bf16 and fp16
  int4,  ///< about an eighth of fp32, a quarter of bf16 and fp16
};

struct CompressOptions {
  ActivationBits bits = ActivationBits::int8;
  int64_t group = 256;      ///< number of values that share a range; a multiple of 32 from 32 to 1024
  int64_t min_size = 4096;  ///< in elements; smaller tensors are not compressed
  /// Seed of the stochastic rounding. By default, it is derived from the seed of libtorch's CPU generator and the
  /// number of earlier guards. A restarted program then rounds the same way.
  std::optional<uint64_t> seed;
  /// Tensors that stay in memory anyway and require no gradient, such as frozen weights and buffers. Tensors that share
  /// their memory are not compressed.
  std::vector<at::Tensor> leave = {};
};

/// Bytes of the compressed tensors so far, before and after compression.
struct CompressedBytes {
  int64_t before = 0, after = 0;
};

/// While the guard lives on a thread, floating-point tensors that autograd saves for backward are kept in fewer bits.
/// Backward gets them in their original dtype and strides. Put it around the forward pass. The loss does not change,
/// but gradients do.
///
/// Not compressed: parameters and other tensors that saved-tensor taps skip, tensors in `leave`, small tensors,
/// integers and booleans (indices of max pooling, masks), float64, and tensors that would not become smaller. On other
/// devices than the CPU, int8 and int4 are replaced by bf16. Uncompressed tensors and the codes themselves are passed
/// to the surrounding guards: within an OffloadGuard, the codes are offloaded. Non-finite values stay non-finite, so
/// that a loss scaler detects them.
/// Numerics: int8 and int4 round as kernels::quantize_groups: unbiased, with errors below (maximum − minimum of a
///           group) / 254 and / 14. ReLU's masks stay exact. Gradients have a bias where backward multiplies two
///           rounded values (norms, attention) (tests/recompute/compress_test.cpp).
/// Cost:     reads each tensor once; writes and reads the codes. Backward decodes a tensor once for consecutive nodes
///           that saved it.
/// Threads:  affects the thread that creates it; create and destroy the guard on the same thread
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
