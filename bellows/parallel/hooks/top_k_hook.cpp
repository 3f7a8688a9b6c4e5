#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/hooks/hook_state.h"
#include "bellows/parallel/hooks/hooks.h"

namespace bellows::parallel {

namespace {

class TopK final : public GradientHook {
 public:
  explicit TopK(const TopKOptions& options) : ratio_(options.ratio), feedback_(options.error_feedback) {}

  at::Tensor mean(const GradientBucket& bucket, const comm::Group& group) override {
    at::Tensor flat = bucket.flat;
    if (nothing_to_exchange(bucket, group)) return flat;
    const int64_t count = flat.numel();
    TORCH_CHECK_VALUE(count <= std::numeric_limits<int32_t>::max(), describe(), ": bucket ", bucket.index, " has ",
                      count, " gradients, but positions have only 32 bits. Use smaller buckets.");
    const auto kept = std::clamp<int64_t>(std::llround(std::ceil(ratio_ * static_cast<double>(count))), 1, count);
    const at::Tensor values =
        feedback_.added_to(flat.element_size() < 4 ? flat.to(at::kFloat) : flat, bucket);  // sums need fp32
    const at::Tensor places = std::get<1>(at::topk(values.abs(), kept, -1, /*largest=*/true, /*sorted=*/false));
    const at::Tensor sent = values.index_select(0, places).to(flat.scalar_type());
    const at::Tensor mean = exchange(sent, places, values, group);
    if (feedback_.on()) {
      // Zero for sent values, except for the error of a cast to 16 bits.
      const at::Tensor errors = values.index_copy(0, places, values.index_select(0, places) - sent);
      feedback_.keep(errors, mean, bucket);
    }
    return flat.copy_(mean);
  }

  std::string describe() const override {
    return c10::str("top-k, ", ratio_ * 100, " %", feedback_.on() ? " with error feedback" : "");
  }

  NamedTensors state() const override { return feedback_.state(); }
  void restore(const NamedTensors& state) override { feedback_.restore(state, *this); }

 private:
  /// Sends values and positions as bytes in one collective. Adds them in rank order, so that all ranks get
  /// bit-identical sums.
  static at::Tensor exchange(const at::Tensor& sent, const at::Tensor& places, const at::Tensor& like,
                             const comm::Group& group) {
    const at::Tensor all =
        comm::all_gather(at::cat({sent.view(at::kByte), places.to(at::kInt).view(at::kByte)}), group);
    const int64_t value_bytes = sent.numel() * sent.element_size();
    const at::Tensor values =
        all.narrow(1, 0, value_bytes).contiguous().view(sent.scalar_type()).to(like.scalar_type());
    const at::Tensor where =
        all.narrow(1, value_bytes, all.size(1) - value_bytes).contiguous().view(at::kInt).to(at::kLong);
    at::Tensor sum = at::zeros_like(like);
    for (int rank = 0; rank < group.size(); ++rank) sum.index_add_(0, where[rank], values[rank]);
    return sum.div_(group.size());
  }

  double ratio_;
  ErrorFeedback feedback_;
};

}  // namespace

std::shared_ptr<GradientHook> top_k_hook(const TopKOptions& options) {
  TORCH_CHECK_VALUE(options.ratio > 0 && options.ratio <= 1, "top_k_hook: expected a ratio above 0 and up to 1, got ",
                    options.ratio, ".");
  return std::make_shared<TopK>(options);
}

}  // namespace bellows::parallel
