#include "bellows/recompute/compress.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>

#include "bellows/core/seed.h"
#include "bellows/kernels/group_codes.h"
#include "bellows/recompute/left_alone_impl.h"

namespace bellows::recompute {

namespace {

/// Saved as autograd saves, so that guards around this one get it.
using Saved = torch::autograd::SavedVariable;

class RoundedTensor final : public tap::PackedTensor {
 public:
  explicit RoundedTensor(const at::Tensor& tensor) : rounded_(tensor.to(at::kBFloat16), false) {}
  at::Tensor unpack() override { return rounded_.unpack(); }

 private:
  Saved rounded_;
};

class CodedTensor final : public tap::PackedTensor {
 public:
  /// Params: dense – in whatever order; the codes follow its memory
  CodedTensor(const at::Tensor& dense, kernels::GroupCodes layout)
      : layout_(layout), sizes_(dense.sizes()), strides_(dense.strides()) {
    const at::Tensor codes = at::empty({layout_.codes_bytes()}, at::kByte);
    ranges_ = at::empty({2 * layout_.groups()}, at::kFloat);
    kernels::encode_groups(with(codes), dense.const_data_ptr());
    codes_ = Saved(codes, false);
  }

  at::Tensor unpack() override {
    const at::Tensor codes = codes_.unpack();
    at::Tensor result = at::empty_strided(sizes_, strides_, layout_.dtype);
    kernels::decode_groups(with(codes), result.mutable_data_ptr());
    return result;
  }

 private:
  kernels::GroupCodes with(const at::Tensor& codes) const {
    kernels::GroupCodes args = layout_;
    args.codes = static_cast<uint8_t*>(codes.mutable_data_ptr());
    args.ranges = ranges_.mutable_data_ptr<float>();
    return args;
  }

  kernels::GroupCodes layout_;
  at::DimVector sizes_, strides_;
  Saved codes_;
  at::Tensor ranges_;
};

uint64_t seed_of_this_guard(const CompressOptions& options) {
  static std::atomic<uint64_t> guards{0};
  if (options.seed) return *options.seed;
  return mix_seed(at::detail::getDefaultCPUGenerator().current_seed(), guards++);
}

}  // namespace

class compress::Tap final : public tap::SavedTensorTap {
 public:
  explicit Tap(const CompressOptions& options)
      : options_(options), left_alone_(options.leave), seed_(seed_of_this_guard(options)) {
    TORCH_CHECK_VALUE(options.group >= 32 && options.group <= 1024 && options.group % 32 == 0,
                      "compress: expected a group of 32, 64, … 1024 values, got ", options.group, ".");
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
    kernels::GroupCodes layout{.dtype = tensor.scalar_type(),
                               .size = tensor.numel(),
                               .group = options_.group,
                               .bits = options_.bits == ActivationBits::int8 ? 8 : 4,
                               .seed = mix_seed(seed_, count_++)};
    const int64_t after = layout.codes_bytes() + 8 * layout.groups();
    if (after >= static_cast<int64_t>(tensor.nbytes())) return nullptr;
    const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    count(tensor, after);
    return std::make_shared<CodedTensor>(dense, layout);
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
};

compress::compress(const CompressOptions& options) : tap_(std::make_shared<Tap>(options)), guard_(tap_) {}

compress::~compress() = default;

CompressedBytes compress::bytes() const {
  return tap_->bytes();
}

}  // namespace bellows::recompute
