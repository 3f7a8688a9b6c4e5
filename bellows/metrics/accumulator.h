#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/core/grad_mode.h"
#include "bellows/core/model.h"

namespace bellows::metrics {

/// Guards a block without gradients in which ordinary tensors are created, even in the caller's inference mode. Such
/// tensors can be changed later outside inference mode.
struct PlainTensors {
  c10::InferenceMode off{false};
  c10::NoGradGuard no_grad{};
};

/// The state of a metric: counts, sums or scores of all batches, on the batches' device. Metrics are formulas over
/// accumulators. In a MetricCollection, metrics with equal `key()` share one accumulator.
///
/// The accumulator moves to the device of the first batch. One that was loaded on the CPU moves to an accelerator with
/// the next batch. Batches may come from inference mode or autocast and may require gradients; the state does not
/// inherit this.
/// Threads: not thread-safe; use one per thread and merge them
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  Accumulator& operator=(const Accumulator&) = delete;

  /// Adds a batch. Uses no host synchronization and no data-dependent shapes. An empty batch changes nothing.
  /// Throws: c10::ValueError if shapes, dtypes or devices are invalid
  void update(const at::Tensor& preds, const at::Tensor& target);
  virtual void reset() = 0;
  /// Adds the batches of `other`, which can be on any device and is not changed.
  /// Throws: c10::ValueError if the kind or options differ
  void merge(const Accumulator& other);

  /// A copy of the state, for checkpoints and other ranks.
  virtual NamedTensors state() const = 0;
  /// Replaces the state; `state` can be on any device.
  /// Throws: c10::ValueError if a name is missing or unexpected, or a shape differs
  virtual void load_state(const NamedTensors& state) = 0;
  /// How states of several ranks are combined. True: element-wise sum; false: concatenation along dim 0.
  virtual bool additive() const = 0;

  /// Number of invalid inputs (labels out of range, NaN scores): 0-d int64 on the device. Undefined if there is no such
  /// check.
  virtual at::Tensor invalid() const { return {}; }
  /// Description of what `invalid()` counts, such as "labels outside [0, 10)".
  virtual std::string invalid_text() const { return "invalid inputs"; }
  /// Throws: c10::ValueError if invalid() is not 0. Reading it is a host synchronization.
  void check() const;

  virtual std::unique_ptr<Accumulator> clone() const = 0;
  /// Kind and options. Accumulators with equal keys have the same state after the same batches.
  const std::string& key() const { return key_; }
  /// Name of the metric that created it, for messages.
  const std::string& who() const { return who_; }
  /// The device of the state; the CPU before the first batch.
  virtual c10::Device device() const = 0;

 protected:
  Accumulator(std::string who, std::string key) : who_(std::move(who)), key_(std::move(key)) {}
  Accumulator(const Accumulator&) = default;

  /// The part of update() around add().
  template <class F>
  void with_batch(const at::Tensor& preds, const at::Tensor& target, F add_batch) {
    const PlainTensors plain;
    choose_device(preds, target);
    changed();
    if (preds.numel() > 0) add_batch();
  }
  /// Adds a non-empty batch whose tensors are on one device. Runs under PlainTensors.
  virtual void add(const at::Tensor& preds, const at::Tensor& target) = 0;
  /// Call it when the state changes, so that cached results are recomputed.
  void changed() { ++version_; }
  uint64_t version() const { return version_; }
  /// Adds the state of `other`, which has the same key.
  virtual void add_all_of(const Accumulator& other) = 0;
  /// Creates the state on `device`, which update() has chosen, or moves it there.
  virtual void use_device(c10::Device device) = 0;

 private:
  /// Throws: c10::ValueError if a tensor is undefined, the tensors are on two devices, or the state cannot move to
  ///         their device
  void choose_device(const at::Tensor& preds, const at::Tensor& target);

  std::string who_, key_;
  uint64_t version_ = 0;
};

/// An accumulator of named sums and counts. Merging adds them, and so does an all-reduce over ranks.
class Totals : public Accumulator {
 public:
  struct Entry {
    std::string name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    at::Tensor value{};  ///< undefined before the first batch, meaning zero
  };

  void reset() override;
  NamedTensors state() const override;
  void load_state(const NamedTensors& state) override;
  bool additive() const override { return true; }
  c10::Device device() const override;

 protected:
  Totals(std::string who, std::string key, std::vector<Entry> entries)
      : Accumulator(std::move(who), std::move(key)), entries_(std::move(entries)) {}
  Totals(const Totals& other);

  void add_all_of(const Accumulator& other) override;
  void use_device(c10::Device device) override;
  /// Total i, which add() changes in place.
  const at::Tensor& total(size_t i) const { return entries_[i].value; }
  /// Total i for reading; zeros on the CPU before the first batch.
  at::Tensor read(size_t i) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace bellows::metrics
