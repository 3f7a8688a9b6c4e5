#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <limits>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/hooks/hook_state.h"
#include "bellows/parallel/hooks/hooks.h"

namespace bellows::parallel {

namespace {

constexpr int64_t int8_block = 256, int8_scale = sizeof(float);

/// [parts, blocks, 256] → one row of bytes per part: its integers, then its scales.
at::Tensor quantized(const at::Tensor& values) {
  at::Tensor scales = values.abs().amax(-1, /*keepdim=*/true).div_(127);
  scales.add_(scales * 0);  // infinity becomes NaN, NaN stays NaN, and so does the whole block
  scales.clamp_min_(std::numeric_limits<float>::min());
  const at::Tensor integers = (values / scales).nan_to_num_(0).round_().clamp_(-127, 127).to(at::kChar);
  return at::cat({integers.flatten(1).view(at::kByte), scales.flatten(1).view(at::kByte)}, 1);
}

/// The inverse: [parts, bytes] → [parts, blocks, 256].
at::Tensor dequantized(const at::Tensor& bytes) {
  const int64_t parts = bytes.size(0), blocks = bytes.size(1) / (int8_block + int8_scale);
  const at::Tensor integers = bytes.narrow(1, 0, blocks * int8_block).contiguous().view(at::kChar);
  const at::Tensor scales =
      bytes.narrow(1, blocks * int8_block, blocks * int8_scale).contiguous().view(at::kFloat).unsqueeze(-1);
  return integers.view({parts, blocks, int8_block}).to(at::kFloat) * scales;
}

class Int8 final : public GradientHook {
 public:
  explicit Int8(const Int8Options& options) : feedback_(options.error_feedback) {}

  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    if (nothing_to_exchange(bucket, group)) return bucket.flat;
    const int64_t ranks = group.size(), count = bucket.flat.numel();
    const int64_t blocks = (count + ranks * int8_block - 1) / (ranks * int8_block);
    const at::Tensor values = feedback_.added_to(bucket.flat.to(at::kFloat), bucket);
    const at::Tensor parts =
        at::constant_pad_nd(values, {0, ranks * blocks * int8_block - count}).view({ranks, blocks, int8_block});

    const at::Tensor sent = quantized(parts);
    const at::Tensor own = dequantized(comm::all_to_all(sent, group)).sum(0, /*keepdim=*/true).div_(ranks);
    const at::Tensor own_sent = quantized(own);
    const at::Tensor mean = dequantized(comm::all_gather(own_sent[0], group)).view(-1).narrow(0, 0, count);
    if (feedback_.on()) {
      at::Tensor errors = parts - dequantized(sent);
      // This rank rounded the mean of one part. Its own gradients count 1 / n in the mean, so it adds n times the
      // error.
      errors[group.rank()].add_(own[0] - dequantized(own_sent)[0], ranks);
      feedback_.keep(errors.view(-1).narrow(0, 0, count), mean, bucket);
    }
    at::Tensor flat = bucket.flat;
    return flat.copy_(mean);
  }

  std::string describe() const override { return feedback_.on() ? "int8 with error feedback" : "int8"; }

  NamedTensors state() const override { return feedback_.state(); }
  void restore(const NamedTensors& state) override { feedback_.restore(state, *this); }

 private:
  ErrorFeedback feedback_;
};

}  // namespace

std::shared_ptr<GradientHook> int8_hook(const Int8Options& options) {
  return std::make_shared<Int8>(options);
}

}  // namespace bellows::parallel
