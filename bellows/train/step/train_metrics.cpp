#include "bellows/train/step/train_metrics.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <limits>

#include "bellows/comm/collectives.h"

namespace bellows::train {

namespace {

/// Whether the labels are probabilities [N, C], as MixUp and CutMix create them.
bool are_probabilities(const at::Tensor& labels) {
  return labels.dim() == 2 && labels.is_floating_point();
}

}  // namespace

at::Tensor count_hits(const at::Tensor& scores, const at::Tensor& labels) {
  return at::sum(at::eq(at::argmax(scores, 1), are_probabilities(labels) ? at::argmax(labels, 1) : labels));
}

void TrainMetrics::update(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels) {
  if (mode_ == "none" || !scores.defined()) return;
  const at::Tensor hits = count_hits(scores.detach(), labels);
  hits_ = hits_.defined() ? hits_.to(hits.device()).add_(hits) : hits;
  samples_ += are_probabilities(labels) ? labels.size(0) : labels.numel();
  if (mode_ != "sync") return;
  loss.item<double>();  // for comparison with a usual loop; the result is not needed
  hits_.item<int64_t>();
}

/// Number of hits and of samples.
at::Tensor TrainMetrics::counts(const comm::Group* ranks) const {
  const at::Tensor seen = at::scalar_tensor(samples_, at::kLong);
  const at::Tensor own = hits_.defined() ? at::stack({hits_, seen.to(hits_.device())}) : at::stack({seen.mul(0), seen});
  return ranks && mode_ != "none" ? comm::all_reduce(own, *ranks) : own;
}

double TrainMetrics::take_accuracy(const comm::Group* ranks) {
  const at::Tensor all = counts(ranks);
  const auto samples = all[1].item<int64_t>();
  if (samples == 0) return std::numeric_limits<double>::quiet_NaN();
  const double share = static_cast<double>(all[0].item<int64_t>()) / static_cast<double>(samples);
  hits_.reset();
  samples_ = 0;
  return share;
}

NamedTensors TrainMetrics::state(const comm::Group* ranks) const {
  const at::Tensor all = counts(ranks);
  return {{"hits", all[0].clone()}, {"samples", all[1].clone()}};
}

void TrainMetrics::restore(const NamedTensors& state) {
  for (const auto& [name, value] : state) {
    if (name == "hits") hits_ = value.clone();
    if (name == "samples") samples_ = value.item<int64_t>();
  }
}

}  // namespace bellows::train
