#include "bellows/train/train_metrics.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include <limits>

namespace bellows::train {

void TrainMetrics::start(int64_t classes) {
  classes_ = classes;
  on_device_.emplace(metrics::ClassificationOptions{.num_classes = classes});
}

void TrainMetrics::update(const at::Tensor& loss, const at::Tensor& predictions, const at::Tensor& labels) {
  if (mode_ == "none" || !predictions.defined()) return;
  if (mode_ == "sync") {
    loss.item<double>();  // for a running mean; the loop keeps the losses anyway
    hits_ += at::sum(at::eq(at::argmax(predictions.detach(), 1), labels)).item<int64_t>();
    samples_ += labels.size(0);
    return;
  }
  if (!on_device_) start(predictions.size(1));
  on_device_->update(predictions, labels);
}

double TrainMetrics::take_accuracy() {
  double share = std::numeric_limits<double>::quiet_NaN();
  if (samples_ > 0) share = static_cast<double>(hits_) / static_cast<double>(samples_);
  if (on_device_) {
    share = on_device_->compute().item<double>();
    on_device_->reset();
  }
  hits_ = samples_ = 0;
  return share;
}

NamedTensors TrainMetrics::state() const {
  NamedTensors result = {{"hits", at::scalar_tensor(hits_, at::kLong)},
                         {"samples", at::scalar_tensor(samples_, at::kLong)},
                         {"classes", at::scalar_tensor(classes_, at::kLong)}};
  if (!on_device_) return result;
  for (auto& [name, value] : on_device_->state()) result.emplace_back("on_device." + name, value);
  return result;
}

void TrainMetrics::restore(const NamedTensors& state) {
  NamedTensors counted;
  int64_t classes = 0;
  for (const auto& [name, value] : state) {
    if (name == "hits") hits_ = value.item<int64_t>();
    if (name == "samples") samples_ = value.item<int64_t>();
    if (name == "classes") classes = value.item<int64_t>();
    if (name.starts_with("on_device.")) counted.emplace_back(name.substr(10), value);
  }
  on_device_.reset();
  if (counted.empty()) return;
  start(classes);
  on_device_->load_state(counted);
}

}  // namespace bellows::train
