#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Whether nothing needs to be exchanged: a group of one, or a bucket without gradients.
bool nothing_to_exchange(const GradientBucket& bucket, const comm::Group& group);

/// Computes the exact mean in place.
at::Tensor exact_mean(const at::Tensor& flat, const comm::Group& group);

/// Numbers parameters in the order of their first use, which is the same in each run. Buckets may be rebuilt after the
/// first step in an order that differs between runs.
class ParameterNumbers {
 public:
  int64_t of(const at::Tensor& parameter);
  void see(const GradientBucket& bucket);

 private:
  std::unordered_map<const c10::TensorImpl*, int64_t> numbers_;
};

/// Stores one row of numbers per parameter between steps. Rows are replaced, never modified, so that a background
/// checkpoint sees the values of one step.
class ParameterMemory {
 public:
  /// Params: name – prefix of the state entries: "error" for "error.0"
  explicit ParameterMemory(std::string name) : name_(std::move(name)) {}

  bool empty() const { return rows_.empty(); }
  /// Returns zeros if there is no row yet.
  /// Throws: c10::ValueError if a restored row has another number of elements
  at::Tensor get(int64_t number, int64_t numel, const at::TensorOptions& options) const;
  void set(int64_t number, at::Tensor row) { rows_[number] = std::move(row); }

  void append_to(NamedTensors& state) const;
  /// Takes the entry of a state if its name belongs to this object. Returns whether it does.
  /// Throws: c10::ValueError if the entry is not a row of floating-point numbers
  bool take(const std::string& name, const at::Tensor& row);

 private:
  std::string name_;
  std::map<int64_t, at::Tensor> rows_;
};

/// Error feedback: stores the part of the gradients that compression lost.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(bool on) : on_(on) {}
  bool on() const { return on_; }

  /// Returns `values` plus the errors of the previous step; may return `values` itself.
  at::Tensor added_to(const at::Tensor& values, const GradientBucket& bucket);
  /// Stores the errors of this step. If the mean is not finite, the previous errors are kept, because the step will be
  /// skipped.
  void keep(const at::Tensor& errors, const at::Tensor& mean, const GradientBucket& bucket);

  ParameterNumbers& numbers() { return numbers_; }
  NamedTensors state() const;
  /// Throws: c10::ValueError if `state` has other entries, or error feedback is off
  void restore(const NamedTensors& state, const GradientHook& hook);

 private:
  bool on_;
  ParameterNumbers numbers_;
  ParameterMemory memory_{"error"};
  at::Tensor before_;  ///< the errors that added_to() added
};

}  // namespace bellows::parallel
