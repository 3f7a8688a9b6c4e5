#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/core/grad_mode.h"
#include "bellows/core/model.h"

namespace bellows::metrics {

/// Runs a block as accumulators need it: no gradients, and ordinary tensors even inside the caller's inference mode,
/// so that they can be changed later outside of it.
struct PlainTensors {
  c10::InferenceMode off{false};
  c10::NoGradGuard no_grad{};
};

/// What a metric remembers of the batches that it has seen: counts, sums or scores, on the batches' device. Metrics are
/// formulas over it; those that need the same (`key()`) share one in a MetricCollection.
///
/// It moves to the device of the first batch; one that was loaded on the CPU follows the next batch to an accelerator.
/// Batches may come from inference mode, from autocast, and with gradients: none of that is kept.
/// Threads: one at a time; give each thread its own and merge
class Accumulator {
 public:
  virtual ~Accumulator() = default;
  Accumulator& operator=(const Accumulator&) = delete;

  /// Adds a batch. No host synchronization, no shape that depends on data; an empty batch changes nothing.
  /// Throws: c10::ValueError – shapes, dtypes or devices that do not fit
  void update(const at::Tensor& preds, const at::Tensor& target);
  /// Forgets all batches.
  virtual void reset() = 0;
  /// Adds what `other` has seen; it stays as it is, on any device.
  /// Throws: c10::ValueError – another kind or other options
  void merge(const Accumulator& other);

  /// A copy, for checkpoints and for other ranks.
  virtual NamedTensors state() const = 0;
  /// Replaces what was seen by `state`, from any device.
  /// Throws: c10::ValueError – a name is missing or unexpected, or a shape differs
  virtual void load_state(const NamedTensors& state) = 0;
  /// How the states of several ranks become one: true – element-wise sums; false – concatenation along dim 0.
  virtual bool additive() const = 0;

  /// How many inputs could not be used (labels out of range, NaN scores): 0-d int64 on the device; undefined: there is
  /// no such check.
  virtual at::Tensor invalid() const { return {}; }
  /// What `invalid()` counts, in words: "labels outside [0, 10)".
  virtual std::string invalid_text() const { return "invalid inputs"; }
  /// Throws: c10::ValueError – invalid() is not 0. Reads that number: a host synchronization
  void check() const;

  virtual std::unique_ptr<Accumulator> clone() const = 0;
  /// Kind and options: two with equal keys hold the same after the same batches.
  const std::string& key() const { return key_; }
  /// The metric that it was made for, for messages.
  const std::string& who() const { return who_; }
  /// Where the memory is; the CPU before the first batch.
  virtual c10::Device device() const = 0;

 protected:
  Accumulator(std::string who, std::string key) : who_(std::move(who)), key_(std::move(key)) {}
  Accumulator(const Accumulator&) = default;

  /// What update() does around add().
  template <class F>
  void with_batch(const at::Tensor& preds, const at::Tensor& target, F add_batch) {
    const PlainTensors plain;
    choose_device(preds, target);
    changed();
    if (preds.numel() > 0) add_batch();
  }
  /// Adds a batch of at least one element, all of it on one device; runs under PlainTensors.
  virtual void add(const at::Tensor& preds, const at::Tensor& target) = 0;
  /// For results that are kept until what was seen changes: call it then.
  void changed() { ++version_; }
  uint64_t version() const { return version_; }
  /// `other` has the same key.
  virtual void add_all_of(const Accumulator& other) = 0;
  /// Makes the memory, or moves it: update() has chosen `device`.
  virtual void use_device(c10::Device device) = 0;

 private:
  /// Throws: c10::ValueError – undefined, on two devices, or not where the memory has to stay
  void choose_device(const at::Tensor& preds, const at::Tensor& target);

  std::string who_, key_;
  uint64_t version_ = 0;
};

/// An accumulator of sums and counts by name: merging adds them up, and so does an all-reduce over ranks.
class Totals : public Accumulator {
 public:
  struct Entry {
    std::string name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    at::Tensor value{};  ///< undefined before the first batch: zero
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
  /// The i-th, to be changed in place by add().
  const at::Tensor& total(size_t i) const { return entries_[i].value; }
  /// The i-th for reading: zeros on the CPU before the first batch.
  at::Tensor read(size_t i) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace bellows::metrics
