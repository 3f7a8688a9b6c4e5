#include "bellows/train/train_metrics.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include <limits>

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

double TrainMetrics::take_accuracy() {
  if (samples_ == 0) return std::numeric_limits<double>::quiet_NaN();
  const double share = static_cast<double>(hits_.item<int64_t>()) / static_cast<double>(samples_);
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
