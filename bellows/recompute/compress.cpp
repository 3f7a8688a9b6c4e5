#include "bellows/recompute/compress.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <atomic>
#include <utility>

#include "bellows/core/mutex.h"
#include "bellows/core/seed.h"
#include "bellows/kernels/group_quantization.h"
#include "bellows/recompute/left_alone.h"

namespace bellows::recompute {

namespace {

/// Saved the same way as autograd saves tensors, so that surrounding guards receive it.
using Saved = torch::autograd::SavedVariable;

class RoundedTensor final : public tap::PackedTensor {
 public:
  explicit RoundedTensor(const at::Tensor& tensor) : rounded_(tensor.to(at::kBFloat16), false) {}
  at::Tensor unpack() override { return rounded_.unpack(); }

 private:
  Saved rounded_;
};

/// Params: dense – in any order of dimensions; the codes follow its memory
std::tuple<at::Tensor, at::Tensor> quantized_groups(const at::Tensor& dense, int64_t group, int64_t bits,
                                                    int64_t seed) {
  kernels::GroupQuantization args{.dtype = dense.scalar_type(),
                                  .size = dense.numel(),
                                  .group = group,
                                  .bits = static_cast<int>(bits),
                                  .seed = static_cast<uint64_t>(seed)};
  at::Tensor codes = at::empty({args.codes_bytes()}, at::kByte), ranges = at::empty({2 * args.groups()}, at::kFloat);
  args.codes = codes.mutable_data_ptr<uint8_t>();
  args.ranges = ranges.mutable_data_ptr<float>();
  kernels::quantize_groups(args, dense.const_data_ptr());
  return {std::move(codes), std::move(ranges)};
}

at::Tensor dequantized_groups(const at::Tensor& codes, const at::Tensor& ranges, at::IntArrayRef sizes,
                              at::IntArrayRef strides, at::ScalarType dtype, int64_t group, int64_t bits) {
  at::Tensor result = at::empty_strided(sizes, strides, dtype);
  const kernels::GroupQuantization args{.dtype = dtype,
                                        .size = result.numel(),
                                        .group = group,
                                        .bits = static_cast<int>(bits),
                                        .codes = const_cast<uint8_t*>(codes.const_data_ptr<uint8_t>()),
                                        .ranges = const_cast<float*>(ranges.const_data_ptr<float>())};
  kernels::dequantize_groups(args, result.mutable_data_ptr());
  return result;
}

/// Defined as operators, so that clients of tap::OpTap receive them and run them in order.
TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("quantize_groups(Tensor dense, int group, int bits, int seed) -> (Tensor codes, Tensor ranges)",
              {at::Tag::pt2_compliant_tag});
  library.def(
      "dequantize_groups(Tensor codes, Tensor ranges, int[] sizes, int[] strides, ScalarType dtype, int group, int "
      "bits)"
      " -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("quantize_groups", quantized_groups);
  library.impl("dequantize_groups", dequantized_groups);
}

/// Keeps the values that were decoded last while other nodes still need them: the ReLU before a convolution needs the
/// values that the convolution has just read. It holds one tensor only, to limit the memory.
/// Threads: safe
class LastDecoded {
 public:
  /// Returns: the values if they belong to `owner`, otherwise undefined. Drops values of other owners.
  at::Tensor take(const void* owner) {
    const MutexLock lock(mutex_);
    at::Tensor values = std::exchange(values_, {});
    if (owner != owner_) values.reset();
    return values;
  }
  void keep(const void* owner, const at::Tensor& values) {
    const MutexLock lock(mutex_);
    owner_ = owner;
    values_ = values;
  }
  void forget(const void* owner) {
    const MutexLock lock(mutex_);
    if (owner == owner_) values_.reset();
  }

 private:
  Mutex mutex_;
  const void* owner_ BELLOWS_GUARDED_BY(mutex_) = nullptr;
  at::Tensor values_ BELLOWS_GUARDED_BY(mutex_);
};

class CodedTensor final : public tap::PackedTensor, public std::enable_shared_from_this<CodedTensor> {
 public:
  CodedTensor(const at::Tensor& dense, const kernels::GroupQuantization& layout, uint64_t seed,
              std::shared_ptr<LastDecoded> last)
      : sizes_(dense.sizes()),
        strides_(dense.strides()),
        dtype_(dense.scalar_type()),
        group_(layout.group),
        bits_(layout.bits),
        last_(std::move(last)) {
    static const auto encode = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("bellows::quantize_groups", "")
                                   .typed<decltype(quantized_groups)>();
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor codes;
    std::tie(codes, ranges_) = encode.call(dense, group_, bits_, static_cast<int64_t>(seed));
    codes_ = Saved(codes, false);
  }

  ~CodedTensor() override { last_->forget(this); }

  at::Tensor unpack() override {
    at::Tensor values = last_->take(this);
    if (!values.defined()) values = decoded();
    // Each place that saved the tensor owns this object
    if (weak_from_this().use_count() > 1) last_->keep(this, values);
    return values;
  }

 private:
  at::Tensor decoded() const {
    static const auto decode = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("bellows::dequantize_groups", "")
                                   .typed<decltype(dequantized_groups)>();
    const at::Tensor codes = codes_.unpack();
    const at::AutoDispatchBelowADInplaceOrView below;
    return decode.call(codes, ranges_, sizes_, strides_, dtype_, group_, bits_);
  }

  at::DimVector sizes_, strides_;
  at::ScalarType dtype_;
  int64_t group_, bits_;
  Saved codes_;
  at::Tensor ranges_;
  const std::shared_ptr<LastDecoded> last_;
};

uint64_t seed_of_this_guard(const CompressOptions& options) {
  static std::atomic<uint64_t> guards{0};
  if (options.seed) return *options.seed;
  return mix_seed(at::detail::getDefaultCPUGenerator().current_seed(), guards++);
}

}  // namespace

class CompressGuard::Tap final : public tap::SavedTensorTap {
 public:
  explicit Tap(const CompressOptions& options)
      : options_(options), left_alone_(options.leave), seed_(seed_of_this_guard(options)) {
    TORCH_CHECK_VALUE(options.group >= 32 && options.group <= 1024 && options.group % 32 == 0,
                      "compress: expected a group size of 32, 64, … or 1024 values, got ", options.group, ".");
    TORCH_CHECK_VALUE(options.min_size >= 0, "compress: expected a min_size of at least 0 elements, got ",
                      options.min_size, ".");
  }

  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    const auto dtype = tensor.scalar_type();
    const bool wide = dtype == at::kFloat, narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
    if (left_alone_.has(tensor)) return nullptr;
    if (tensor.numel() < options_.min_size || tensor.numel() == 0 || !(wide || narrow)) return nullptr;
    if (options_.bits != ActivationBits::bf16 && tensor.is_cpu()) return encoded(tensor);
    if (!wide) return nullptr;
    count(tensor, tensor.numel() * 2);
    return std::make_shared<RoundedTensor>(tensor);
  }

  CompressedBytes bytes() const { return {before_, after_}; }

 private:
  std::shared_ptr<tap::PackedTensor> encoded(const at::Tensor& tensor) {
    const kernels::GroupQuantization layout{
        .size = tensor.numel(), .group = options_.group, .bits = options_.bits == ActivationBits::int8 ? 8 : 4};
    const uint64_t seed = mix_seed(seed_, count_++);
    const int64_t after = layout.codes_bytes() + 8 * layout.groups();
    if (after >= static_cast<int64_t>(tensor.nbytes())) return nullptr;
    const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    count(tensor, after);
    return std::make_shared<CodedTensor>(dense, layout, seed, last_);
  }

  void count(const at::Tensor& tensor, int64_t after) {
    before_ += static_cast<int64_t>(tensor.nbytes());
    after_ += after;
  }

  const CompressOptions options_;
  const detail::LeftAlone left_alone_;
  const uint64_t seed_;
  std::atomic<uint64_t> count_{0};
  std::atomic<int64_t> before_{0}, after_{0};
  const std::shared_ptr<LastDecoded> last_ = std::make_shared<LastDecoded>();
};

CompressGuard::CompressGuard(const CompressOptions& options) : tap_(std::make_shared<Tap>(options)), guard_(tap_) {}

CompressGuard::~CompressGuard() = default;

CompressedBytes CompressGuard::bytes() const {
  return tap_->bytes();
}

}  // namespace bellows::recompute
