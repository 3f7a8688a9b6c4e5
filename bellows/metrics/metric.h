#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/metrics/accumulator.h"

namespace bellows::metrics {

/// A result (one or a few numbers) over many batches: call `update` with each batch, then `compute`. The metrics in
/// this component derive from it without adding members, so you can store any of them by value as a Metric. A copy
/// counts independently.
///
/// Batches are added on their device. The host does not wait before compute() or your `.item()`.
/// Threads: not thread-safe; use a copy per thread and merge them
class Metric {
 public:
  /// Creates your own metric from an accumulator and a formula.
  /// Params: formula – const A& → tensor; must not wait for the device
  template <class A, class F>
  Metric(std::unique_ptr<A> seen, F formula)
      : seen_(std::move(seen)),
        formula_([formula = std::move(formula)](const Accumulator& a) { return formula(static_cast<const A&>(a)); }) {}
  Metric(const Metric& other) : seen_(other.seen_->clone()), formula_(other.formula_) {}
  Metric& operator=(const Metric& other);
  Metric(Metric&&) = default;
  Metric& operator=(Metric&&) = default;
  ~Metric() = default;

  /// Adds a batch. The particular metric defines the shapes.
  /// Cost:   a few small operators; no host synchronization
  /// Throws: c10::ValueError if shapes, dtypes or devices are invalid; then the state is not changed
  void update(const at::Tensor& preds, const at::Tensor& target) { seen_->update(preds, target); }

  /// The result of all batches, on their device, in float64.
  /// Cost:   one host synchronization, for the check
  /// Throws: c10::ValueError if inputs were invalid, such as labels out of range or NaN scores (the message states how
  ///         many)
  at::Tensor compute() const;
  /// The result without the check and therefore without a host synchronization, for use in every step. After invalid
  /// inputs it is NaN (-1 if the result is a count), so they are always visible.
  at::Tensor value() const;

  void reset() { seen_->reset(); }
  /// Adds the batches of `other`. The result is the same as if this metric had received them.
  /// Throws: c10::ValueError if the metric or options differ
  void merge(const Metric& other) { seen_->merge(*other.seen_); }
  /// A copy of the state, for checkpoints. If `additive()` is true, states of several ranks are added (all-reduce);
  /// otherwise they are concatenated along dim 0.
  NamedTensors state() const { return seen_->state(); }
  bool additive() const { return seen_->additive(); }
  /// Kind and options of the accumulator. Metrics with equal keys can be merged.
  const std::string& key() const { return seen_->key(); }
  /// Throws: c10::ValueError if the state belongs to another metric or to other options
  void load_state(const NamedTensors& state) { seen_->load_state(state); }

 protected:
  Accumulator& seen() { return *seen_; }

 private:
  friend class MetricCollection;
  std::shared_ptr<Accumulator> seen_;  // shared inside a MetricCollection only
  std::function<at::Tensor(const Accumulator&)> formula_;
};

/// Named metrics that get the same batches. Metrics that need the same counts share them: accuracy, precision, recall,
/// F1 and IoU of one task cost one update.
/// Threads: not thread-safe, as Metric
class MetricCollection {
 public:
  using Entries = std::vector<std::pair<std::string, Metric>>;
  /// Starts empty; earlier batches of the metrics are discarded.
  /// Throws: c10::ValueError if a name occurs twice
  explicit MetricCollection(Entries metrics);
  MetricCollection(std::initializer_list<Entries::value_type> metrics) : MetricCollection(Entries(metrics)) {}
  MetricCollection(const MetricCollection& other) : metrics_(other.metrics_) { share(); }
  MetricCollection& operator=(const MetricCollection& other);
  MetricCollection(MetricCollection&&) = default;
  MetricCollection& operator=(MetricCollection&&) = default;
  ~MetricCollection() = default;

  void update(const at::Tensor& preds, const at::Tensor& target);
  /// Results in the order of the constructor.
  /// Cost:   one host synchronization for each set of shared counts
  /// Throws: as Metric::compute
  NamedTensors compute() const;
  /// Results without checks and synchronizations, as Metric::value.
  NamedTensors value() const;

  void reset();
  /// Throws: c10::ValueError if metrics, names or options differ
  void merge(const MetricCollection& other);
  /// Each set of counts once, named "metric.total" after the first metric that uses it.
  NamedTensors state() const;
  /// Throws: c10::ValueError if the state belongs to another collection
  void load_state(const NamedTensors& state);
  /// True if Metric::additive is true for all metrics.
  bool additive() const;
  /// "name: key" of each metric in order. Collections with equal keys can be merged.
  std::vector<std::string> keys() const;

  size_t size() const { return metrics_.size(); }
  /// Throws: c10::ValueError if the name is unknown (the message suggests the nearest name)
  const Metric& operator[](std::string_view name) const;

 private:
  void share();

  Entries metrics_;
  std::vector<size_t> owners_;  // index of one metric for each accumulator
};

}  // namespace bellows::metrics
