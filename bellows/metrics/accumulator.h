#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/core/grad_mode.h"
#include "bellows/core/model.h"

namespace bellows::metrics {

/// Turns off inference mode and gradients in a scope. Tensors that are created in this scope can be changed later,
/// outside inference mode.
struct PlainTensors {
  c10::InferenceMode off{false};
  c10::NoGradGuard no_grad{};
};

/// The state of a metric: counts, sums or scores of all batches. It is on the device of the batches. A metric is a
/// formula over an accumulator. In a MetricCollection, metrics with equal `key()` share one accumulator.
///
/// The state moves to the device of the first batch. A state that was loaded on the CPU moves to an accelerator with
/// the next batch. Batches may come from inference mode or autocast and may require gradients. The state does not
/// inherit these properties.
/// Threads: not thread-safe; use one accumulator per thread and merge them
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  Accumulator& operator=(const Accumulator&) = delete;

  /// Adds a batch. There is no host synchronization, and no shape depends on the data. An empty batch adds nothing.
  /// Like every other batch, it still moves the state to its device and increments `version`.
  /// Throws: c10::ValueError if shapes, dtypes or devices are invalid
  void update(const at::Tensor& preds, const at::Tensor& target);
  virtual void reset() = 0;
  /// Adds the batches of `other`, which can be on any device and is not changed.
  /// Throws: c10::ValueError if the kind or options differ
  void merge(const Accumulator& other);

  /// Returns a copy of the state, for checkpoints and other ranks.
  virtual NamedTensors state() const = 0;
  /// Replaces the state; `state` can be on any device.
  /// Throws: c10::ValueError if a name is missing or unexpected, or a shape differs
  virtual void load_state(const NamedTensors& state) = 0;
  /// Defines how the states of several ranks are combined: by element-wise sum (true) or by concatenation along dim 0
  /// (false).
  virtual bool additive() const = 0;

  /// Returns the number of invalid inputs (labels out of range, NaN scores), as a 0-d int64 tensor on the device. The
  /// tensor is undefined if the accumulator does not check its inputs.
  virtual at::Tensor invalid() const { return {}; }
  /// Describes the inputs that `invalid()` counts, such as "labels outside [0, 10)".
  virtual std::string invalid_text() const { return "invalid inputs"; }
  /// Throws: c10::ValueError if invalid() is not 0. The check causes a host synchronization.
  void check() const;

  virtual std::unique_ptr<Accumulator> clone() const = 0;
  /// Returns the kind and options as text. After the same batches, accumulators with equal keys have the same state.
  const std::string& key() const { return key_; }
  /// Returns the name of the metric that created the accumulator, for messages.
  const std::string& who() const { return who_; }
  /// Returns the device of the state. Before the first batch, it is the CPU.
  virtual c10::Device device() const = 0;

 protected:
  Accumulator(std::string who, std::string key) : who_(std::move(who)), key_(std::move(key)) {}
  Accumulator(const Accumulator&) = default;

  /// Implements update(). `add_batch` is called if the batch is not empty.
  template <class F>
  void with_batch(const at::Tensor& preds, const at::Tensor& target, F add_batch) {
    const PlainTensors plain;
    choose_device(preds, target);
    changed();
    if (preds.numel() > 0) add_batch();
  }
  /// Adds a batch that is not empty and whose tensors are on one device. Runs under PlainTensors.
  virtual void add(const at::Tensor& preds, const at::Tensor& target) = 0;
  /// Call this function whenever the state changes, so that cached results are recomputed.
  void changed() { ++version_; }
  uint64_t version() const { return version_; }
  /// Adds the state of `other`, which has the same key.
  virtual void add_all_of(const Accumulator& other) = 0;
  /// Creates the state on `device`, or moves it there. update() chooses the device.
  virtual void use_device(c10::Device device) = 0;

 private:
  /// Throws: c10::ValueError if a tensor is undefined, if the tensors are on different devices, or if the state cannot
  ///         move to their device
  void choose_device(const at::Tensor& preds, const at::Tensor& target);

  std::string who_, key_;
  uint64_t version_ = 0;
};

/// An accumulator of named sums and counts. Merging adds the sums and counts, and so does an all-reduce over ranks.
class Totals : public Accumulator {
 public:
  struct Entry {
    std::string name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    at::Tensor value{};  ///< undefined before the first batch; counts as zero
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
  /// The total at index i. add() changes it in place.
  const at::Tensor& total(size_t i) const { return entries_[i].value; }
  /// The total at index i, for reading. Before the first batch, it is a tensor of zeros on the CPU.
  at::Tensor read(size_t i) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace bellows::metrics
