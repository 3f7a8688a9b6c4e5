#include "bellows/train/train_metrics.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <limits>

#include "bellows/comm/collectives.h"

namespace bellows::train {

at::Tensor count_hits(const at::Tensor& scores, const at::Tensor& labels) {
  return at::sum(at::eq(at::argmax(scores, 1), labels));
}

void TrainMetrics::update(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels) {
  if (mode_ == "none" || !scores.defined()) return;
  const at::Tensor hits = count_hits(scores.detach(), labels);
  hits_ = hits_.defined() ? hits_.to(hits.device()).add_(hits) : hits;
  samples_ += labels.numel();
  if (mode_ != "sync") return;
  loss.item<double>();  // for a running mean; the loop keeps the losses anyway
  hits_.item<int64_t>();
}

double TrainMetrics::take_accuracy(const comm::Group* ranks) {
  const at::Tensor seen = at::scalar_tensor(samples_, at::kLong);
  at::Tensor counts = hits_.defined() ? at::stack({hits_, seen.to(hits_.device())}) : at::stack({seen.mul(0), seen});
  if (ranks && mode_ != "none") counts = comm::all_reduce(counts, *ranks);
  const auto samples = counts[1].item<int64_t>();
  if (samples == 0) return std::numeric_limits<double>::quiet_NaN();
  const double share = static_cast<double>(counts[0].item<int64_t>()) / static_cast<double>(samples);
  hits_.reset();
  samples_ = 0;
  return share;
}

NamedTensors TrainMetrics::state() const {
  return {{"hits", hits_.defined() ? hits_.clone() : at::scalar_tensor(0, at::kLong)},
          {"samples", at::scalar_tensor(samples_, at::kLong)}};
}

void TrainMetrics::restore(const NamedTensors& state) {
  for (const auto& [name, value] : state) {
    if (name == "hits") hits_ = value.clone();
    if (name == "samples") samples_ = value.item<int64_t>();
  }
}

}  // namespace bellows::train
