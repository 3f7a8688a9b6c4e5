#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Returns whether there is nothing to exchange, because the group has one rank or the bucket has no gradients.
bool nothing_to_exchange(const GradientBucket& bucket, const comm::Group& group);

/// Replaces `flat` with its exact mean over the ranks, and returns it.
at::Tensor exact_mean(const at::Tensor& flat, const comm::Group& group);

/// Numbers the parameters in the order of their first use. This order is the same in every run. The order of parameters
/// in the buckets can differ, because buckets may be rebuilt after the first step.
class ParameterNumbers {
 public:
  int64_t of(const at::Tensor& parameter);
  void see(const GradientBucket& bucket);

 private:
  std::unordered_map<const c10::TensorImpl*, int64_t> numbers_;
};

/// Stores one 1-D tensor ("row") per parameter from one step to the next. Rows are replaced, never modified, so a
/// checkpoint that is written in the background contains the values of one step.
class ParameterMemory {
 public:
  /// Params: name – prefix of the entry names in the state. "error" gives "error.0"
  explicit ParameterMemory(std::string name) : name_(std::move(name)) {}

  bool empty() const { return rows_.empty(); }
  /// Returns the row of a parameter, or zeros if the parameter has no row yet.
  /// Throws: c10::ValueError if the number of elements in a restored row is not `numel`
  at::Tensor get(int64_t number, int64_t numel, const at::TensorOptions& options) const;
  void set(int64_t number, at::Tensor row) { rows_[number] = std::move(row); }

  void append_to(NamedTensors& state) const;
  /// Stores an entry of a state if its name has this object's prefix. Returns whether the entry was stored.
  /// Throws: c10::ValueError if the entry is not a 1-D floating-point tensor
  bool take(const std::string& name, const at::Tensor& row);

 private:
  std::string name_;
  std::map<int64_t, at::Tensor> rows_;
};

/// Error feedback: stores the part of the gradients that compression lost, and adds it in the next step.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(bool on) : on_(on) {}
  bool on() const { return on_; }

  /// Returns `values` plus the errors of the previous step. If there are no errors, it returns `values` itself.
  at::Tensor added_to(const at::Tensor& values, const GradientBucket& bucket);
  /// Stores the errors of this step. If the mean is not finite, the optimizer step will be skipped, so the previous
  /// errors are kept.
  void keep(const at::Tensor& errors, const at::Tensor& mean, const GradientBucket& bucket);

  ParameterNumbers& numbers() { return numbers_; }
  NamedTensors state() const;
  /// Throws: c10::ValueError if `state` has entries of another hook, or if error feedback is off and `state` is not
  ///         empty
  void restore(const NamedTensors& state, const GradientHook& hook);

 private:
  bool on_;
  ParameterNumbers numbers_;
  ParameterMemory memory_{"error"};
  at::Tensor before_;  ///< the errors that the last call of added_to() added
};

}  // namespace bellows::parallel
