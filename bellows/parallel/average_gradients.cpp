#include "bellows/parallel/average_gradients.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/flat_tensors.h"

namespace bellows::parallel {

namespace {

constexpr size_t averaged_bucket_bytes = 25 << 20;

/// Gradients with the same dtype and device, which are sent together.
struct AveragedBucket {
  std::vector<at::Tensor> gradients;
  size_t bytes = 0;
};

std::vector<AveragedBucket> bucketed(const std::vector<at::Tensor>& gradients) {
  std::vector<AveragedBucket> buckets;
  for (const at::Tensor& gradient : gradients) {
    const bool fits = !buckets.empty() && buckets.back().bytes < averaged_bucket_bytes &&
                      buckets.back().gradients[0].scalar_type() == gradient.scalar_type() &&
                      buckets.back().gradients[0].device() == gradient.device();
    if (!fits) buckets.emplace_back();
    buckets.back().gradients.push_back(gradient);
    buckets.back().bytes += gradient.nbytes();
  }
  return buckets;
}

comm::Pending start_mean(const AveragedBucket& bucket, const comm::Group& group) {
  return comm::all_reduce_async(flattened(bucket.gradients), group, comm::Reduce::mean);
}

/// The gradients of the parameters that any rank used. Creates those that this rank lacks.
std::vector<at::Tensor> used_gradients(const std::vector<at::Tensor>& parameters, const comm::Group& group) {
  if (parameters.empty()) return {};
  std::vector<int64_t> defined;
  defined.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) defined.push_back(parameter.grad().defined() ? 1 : 0);
  const at::Tensor used = comm::all_reduce(at::tensor(defined, at::kLong).to(parameters.front().device()), group).cpu();
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (used.const_data_ptr<int64_t>()[i] == 0) continue;
    const at::Tensor& parameter = parameters[i];
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    TORCH_CHECK_VALUE(parameter.grad().layout() == at::kStrided, "expected dense gradients, got a ",
                      parameter.grad().layout(), " gradient of sizes [", c10::Join(", ", parameter.sizes()),
                      "]. Set sparse(false) in the layer.");
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace

void average_gradients(const std::vector<at::Tensor>& parameters, const comm::Group& group) {
  if (parameters.empty() || group.size() == 1) return;
  const c10::NoGradGuard no_grad;
  const std::vector<AveragedBucket> buckets = bucketed(used_gradients(parameters, group));
  std::optional<comm::Pending> before;
  for (size_t i = 0; i < buckets.size(); ++i) {
    comm::Pending pending = start_mean(buckets[i], group);
    if (before) copy_flat(before->wait(), buckets[i - 1].gradients);
    before.emplace(std::move(pending));
  }
  if (before) copy_flat(before->wait(), buckets.back().gradients);
}

}  // namespace bellows::parallel
