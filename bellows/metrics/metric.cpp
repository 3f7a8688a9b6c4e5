#include "bellows/metrics/metric.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "bellows/core/error.h"

namespace bellows::metrics {

Metric& Metric::operator=(const Metric& other) {
  return *this = Metric(other);
}

at::Tensor Metric::value() const {
  const PlainTensors plain;
  at::Tensor result = formula_(*seen_);
  const at::Tensor invalid = seen_->invalid();
  if (!invalid.defined()) return result;
  const double mark = result.is_floating_point() ? std::numeric_limits<double>::quiet_NaN() : -1;
  return result.masked_fill(invalid.gt(0), mark);
}

at::Tensor Metric::compute() const {
  seen_->check();
  const PlainTensors plain;
  return formula_(*seen_);
}

MetricCollection::MetricCollection(Entries metrics) : metrics_(std::move(metrics)) {
  std::vector<std::string> names;
  for (auto& [name, metric] : metrics_) {
    TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), name) == names.end(), "MetricCollection: \"", name,
                      "\" occurs twice. Rename one of the metrics.");
    names.push_back(name);
    metric.reset();
  }
  share();
}

MetricCollection& MetricCollection::operator=(const MetricCollection& other) {
  return *this = MetricCollection(other);
}

void MetricCollection::share() {
  owners_.clear();
  for (size_t i = 0; i < metrics_.size(); ++i) {
    auto& seen = metrics_[i].second.seen_;
    const auto same = [&](size_t owner) { return metrics_[owner].second.seen_->key() == seen->key(); };
    const auto owner = std::find_if(owners_.begin(), owners_.end(), same);
    if (owner == owners_.end()) {
      owners_.push_back(i);
    } else {
      seen = metrics_[*owner].second.seen_;
    }
  }
}

void MetricCollection::update(const at::Tensor& preds, const at::Tensor& target) {
  for (const size_t i : owners_) metrics_[i].second.update(preds, target);
}

NamedTensors MetricCollection::compute() const {
  for (const size_t i : owners_) metrics_[i].second.seen_->check();
  const PlainTensors plain;
  NamedTensors result;
  for (const auto& [name, metric] : metrics_) result.emplace_back(name, metric.formula_(*metric.seen_));
  return result;
}

NamedTensors MetricCollection::value() const {
  NamedTensors result;
  for (const auto& [name, metric] : metrics_) result.emplace_back(name, metric.value());
  return result;
}

void MetricCollection::reset() {
  for (const size_t i : owners_) metrics_[i].second.reset();
}

void MetricCollection::merge(const MetricCollection& other) {
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  TORCH_CHECK_VALUE(
      std::equal(metrics_.begin(), metrics_.end(), other.metrics_.begin(), other.metrics_.end(), same_name),
      "MetricCollection.merge: expected a collection with the same names in the same order.");
  // Compares all metrics before any is changed.
  for (size_t i = 0; i < metrics_.size(); ++i) {
    const auto &mine = *metrics_[i].second.seen_, &theirs = *other.metrics_[i].second.seen_;
    TORCH_CHECK_VALUE(mine.key() == theirs.key(), "MetricCollection.merge: \"", metrics_[i].first, "\" is ", mine.key(),
                      " in this collection and ", theirs.key(), " in the other one.");
  }
  for (const size_t i : owners_) metrics_[i].second.merge(other.metrics_[i].second);
}

NamedTensors MetricCollection::state() const {
  NamedTensors result;
  for (const size_t i : owners_) {
    for (auto& [name, tensor] : metrics_[i].second.state()) {
      result.emplace_back(metrics_[i].first + "." + name, std::move(tensor));
    }
  }
  return result;
}

void MetricCollection::load_state(const NamedTensors& state) {
  size_t used = 0;
  MetricCollection loaded(*this);  // all or nothing
  for (const size_t i : owners_) {
    const std::string& metric = metrics_[i].first;
    NamedTensors own;
    for (const auto& [total, unused] : metrics_[i].second.state()) {
      const std::string name = metric + "." + total;
      const auto found = std::find_if(state.begin(), state.end(), [&](const auto& s) { return s.first == name; });
      if (found != state.end()) own.emplace_back(total, found->second);
    }
    used += own.size();
    loaded.metrics_[i].second.load_state(own);
  }
  TORCH_CHECK_VALUE(used == state.size(), "MetricCollection.load_state: ", state.size() - used,
                    " tensors belong to no metric of this collection.");
  *this = std::move(loaded);
}

bool MetricCollection::additive() const {
  return std::all_of(owners_.begin(), owners_.end(), [&](size_t i) { return metrics_[i].second.additive(); });
}

std::vector<std::string> MetricCollection::keys() const {
  std::vector<std::string> keys;
  keys.reserve(metrics_.size());
  for (const auto& [name, metric] : metrics_) keys.push_back(c10::str(name, ": ", metric.key()));
  return keys;
}

const Metric& MetricCollection::operator[](std::string_view name) const {
  std::vector<std::string> names;
  for (const auto& [known, metric] : metrics_) {
    if (known == name) return metric;
    names.push_back(known);
  }
  C10_THROW_ERROR(ValueError, c10::str("MetricCollection: no metric \"", name, "\".", did_you_mean(name, names)));
}

}  // namespace bellows::metrics
