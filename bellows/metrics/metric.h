#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/metrics/accumulator.h"

namespace bellows::metrics {

/// A number (or a few) about a whole run of batches: `update` with each batch, then `compute`. The metrics of this component
/// derive from it without members of their own, so that any of them is kept as a Metric by value. A copy counts on its
/// own.
///
/// Batches are added on their device and the host never waits, until compute() or the caller's `.item()`.
/// Threads: not thread-safe; a copy for each thread, then merge
class Metric {
 public:
  /// A metric of your own: what it remembers, and the result from that.
  /// Params:   formula – const A& → tensor; must not wait for the device
  template <class A, class F>
  Metric(std::unique_ptr<A> seen, F formula)
      : seen_(std::move(seen)),
        formula_([formula = std::move(formula)](const Accumulator& a) { return formula(static_cast<const A&>(a)); }) {}
  Metric(const Metric& other) : seen_(other.seen_->clone()), formula_(other.formula_) {}
  Metric& operator=(const Metric& other);
  Metric(Metric&&) = default;
  Metric& operator=(Metric&&) = default;
  ~Metric() = default;

  /// Adds a batch. Shapes are those of the particular metric.
  /// Cost:     a few small operators; no host synchronization
  /// Throws:   c10::ValueError – shapes, dtypes or devices that do not fit; the state stays as it was
  void update(const at::Tensor& preds, const at::Tensor& target) { seen_->update(preds, target); }

  /// The result of all batches, on their device, float64.
  /// Cost:     one host synchronization, for the check
  /// Throws:   c10::ValueError – some inputs were unusable: labels out of range, NaN scores; says how many
  at::Tensor compute() const;
  /// The same without the check and so without a synchronization, for reading every step. After unusable inputs it is
  /// NaN (-1 where the result is a count): they never pass unseen.
  at::Tensor value() const;

  /// Forgets all batches.
  void reset() { seen_->reset(); }
  /// Adds what `other` has seen: the same as its batches given to this one.
  /// Throws:   c10::ValueError – another metric or other options
  void merge(const Metric& other) { seen_->merge(*other.seen_); }
  /// A copy of what was seen, for checkpoints. `additive()`: states of several ranks are added up (all-reduce); else
  /// they are concatenated along dim 0.
  NamedTensors state() const { return seen_->state(); }
  bool additive() const { return seen_->additive(); }
  /// Kind and options of what is counted: metrics with equal keys can be merged.
  const std::string& key() const { return seen_->key(); }
  /// Throws:   c10::ValueError – the state of another metric or of other options
  void load_state(const NamedTensors& state) { seen_->load_state(state); }

 protected:
  Accumulator& seen() { return *seen_; }

 private:
  friend class MetricCollection;
  std::shared_ptr<Accumulator> seen_;  // shared inside a MetricCollection only
  std::function<at::Tensor(const Accumulator&)> formula_;
};

/// Metrics by name that take the same batches. Those that need the same counts share them: accuracy, precision, recall,
/// F1 and IoU of one task cost one update.
/// Threads: as Metric
class MetricCollection {
 public:
  using Entries = std::vector<std::pair<std::string, Metric>>;
  /// Starts from nothing: what the metrics may have seen is forgotten.
  /// Throws:   c10::ValueError – a name twice
  explicit MetricCollection(Entries metrics);
  MetricCollection(std::initializer_list<Entries::value_type> metrics) : MetricCollection(Entries(metrics)) {}
  MetricCollection(const MetricCollection& other) : metrics_(other.metrics_) { share(); }
  MetricCollection& operator=(const MetricCollection& other);
  MetricCollection(MetricCollection&&) = default;
  MetricCollection& operator=(MetricCollection&&) = default;
  ~MetricCollection() = default;

  void update(const at::Tensor& preds, const at::Tensor& target);
  /// In the order of the constructor. Cost: one host synchronization for each set of shared counts
  /// Throws:   as Metric::compute
  NamedTensors compute() const;
  /// Without checks and synchronizations, as Metric::value.
  NamedTensors value() const;

  void reset();
  /// Throws:   c10::ValueError – other metrics, names or options
  void merge(const MetricCollection& other);
  /// Every set of counts once, named "metric.total" after the first metric that uses it.
  NamedTensors state() const;
  /// Throws:   c10::ValueError – the state of another collection
  void load_state(const NamedTensors& state);
  /// As Metric::additive: true when it is for all of them.
  bool additive() const;
  /// "name: key" of each metric, in order: collections with equal keys can be merged.
  std::vector<std::string> keys() const;

  size_t size() const { return metrics_.size(); }
  /// Throws:   c10::ValueError – no such metric; names the nearest one
  const Metric& operator[](std::string_view name) const;

 private:
  void share();

  Entries metrics_;
  std::vector<size_t> owners_;  // one metric for each accumulator, by position
};

}  // namespace bellows::metrics
