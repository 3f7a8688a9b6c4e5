#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/metrics/accumulator.h"

namespace bellows::metrics {

/// Computes one or a few numbers over many batches. Call update() with each batch, then call compute(). The metrics in
/// this component derive from this class without adding members, so you can store any of them by value as a Metric.
/// Copies are independent.
///
/// update() works on the device of the batches. The host does not wait for the device until you call compute() or
/// `.item()`.
/// Threads: not thread-safe; use one copy per thread and merge the copies
class Metric {
 public:
  /// Creates your own metric from an accumulator and a formula.
  /// Params: formula – function from const A& to a tensor; must not wait for the device
  template <class A, class F>
  Metric(std::unique_ptr<A> seen, F formula)
      : seen_(std::move(seen)),
        formula_([formula = std::move(formula)](const Accumulator& a) { return formula(static_cast<const A&>(a)); }) {}
  Metric(const Metric& other) : seen_(other.seen_->clone()), formula_(other.formula_) {}
  Metric& operator=(const Metric& other);
  Metric(Metric&&) = default;
  Metric& operator=(Metric&&) = default;
  ~Metric() = default;

  /// Adds a batch. Each metric documents its shapes.
  /// Cost:   a few small operators; no host synchronization
  /// Throws: c10::ValueError if shapes, dtypes or devices are invalid; the state is not changed in this case
  void update(const at::Tensor& preds, const at::Tensor& target) { seen_->update(preds, target); }

  /// Returns the result for all batches, on the device of the batches. The result is in float64, or in int64 for
  /// counts.
  /// Cost:   one host synchronization, for the check
  /// Throws: c10::ValueError if inputs were invalid, such as labels out of range or NaN scores (the message states how
  ///         many)
  at::Tensor compute() const;
  /// Returns the result without the check, and therefore without a host synchronization. You can call this function in
  /// every step. If inputs were invalid, the result is NaN (-1 for counts), so the problem is always visible.
  at::Tensor value() const;

  void reset() { seen_->reset(); }
  /// Adds the batches of `other`. The result is the same as if this metric had received them.
  /// Throws: c10::ValueError if the metric or options differ
  void merge(const Metric& other) { seen_->merge(*other.seen_); }
  /// Returns a copy of the state, for checkpoints. To combine the states of several ranks, add them (all-reduce) if
  /// `additive()` is true. Otherwise, concatenate them along dim 0.
  NamedTensors state() const { return seen_->state(); }
  bool additive() const { return seen_->additive(); }
  /// Returns the kind and options of the accumulator as text. Metrics with equal keys can be merged.
  const std::string& key() const { return seen_->key(); }
  /// Throws: c10::ValueError if the state belongs to a different metric or to different options
  void load_state(const NamedTensors& state) { seen_->load_state(state); }

 protected:
  Accumulator& seen() { return *seen_; }

 private:
  friend class MetricCollection;
  std::shared_ptr<Accumulator> seen_;  // shared inside a MetricCollection only
  std::function<at::Tensor(const Accumulator&)> formula_;
};

/// Named metrics that receive the same batches. Metrics that need the same counts share them. For example, accuracy,
/// precision, recall, F1 and IoU of one task cost one update.
/// Threads: not thread-safe, like Metric
class MetricCollection {
 public:
  using Entries = std::vector<std::pair<std::string, Metric>>;
  /// The collection starts without batches. Earlier batches of the metrics are discarded.
  /// Throws: c10::ValueError if a name occurs twice
  explicit MetricCollection(Entries metrics);
  MetricCollection(std::initializer_list<Entries::value_type> metrics) : MetricCollection(Entries(metrics)) {}
  MetricCollection(const MetricCollection& other) : metrics_(other.metrics_) { share(); }
  MetricCollection& operator=(const MetricCollection& other);
  MetricCollection(MetricCollection&&) = default;
  MetricCollection& operator=(MetricCollection&&) = default;
  ~MetricCollection() = default;

  /// Adds a batch to all metrics.
  /// Throws: like Metric::update()
  void update(const at::Tensor& preds, const at::Tensor& target);
  /// Returns the results in the order of the constructor.
  /// Cost:   one host synchronization for each set of shared counts
  /// Throws: like Metric::compute()
  NamedTensors compute() const;
  /// Returns the results without checks and host synchronizations, like Metric::value().
  NamedTensors value() const;

  void reset();
  /// Throws: c10::ValueError if metrics, names or options differ
  void merge(const MetricCollection& other);
  /// Returns each set of shared counts once. Each tensor is named METRIC.TENSOR, where METRIC is the first metric that
  /// uses the set.
  NamedTensors state() const;
  /// Throws: c10::ValueError if the state belongs to a different collection
  void load_state(const NamedTensors& state);
  /// True if all metrics are additive.
  bool additive() const;
  /// Returns "name: key" of each metric, in order. Collections with equal keys can be merged.
  std::vector<std::string> keys() const;

  size_t size() const { return metrics_.size(); }
  /// Throws: c10::ValueError if the name is unknown (the message suggests the nearest name)
  const Metric& operator[](std::string_view name) const;

 private:
  void share();

  Entries metrics_;
  std::vector<size_t> owners_;  // for each accumulator, the index of one metric that uses it
};

}  // namespace bellows::metrics
