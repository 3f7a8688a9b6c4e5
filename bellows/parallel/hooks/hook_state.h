#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "bellows/parallel/hooks/gradient_hook.h"

namespace bellows::parallel {

/// Nothing has to travel: a group of one, or a bucket without gradients.
bool nothing_to_exchange(const GradientBucket& bucket, const comm::Group& group);

/// The mean itself, in place.
at::Tensor exact_mean(const at::Tensor& flat, const comm::Group& group);

/// Numbers parameters as they are first seen. Buckets may be made anew after the first step, in an order that differs
/// from run to run; the first step's is the same in each.
class ParameterNumbers {
 public:
  int64_t of(const at::Tensor& parameter);
  void see(const GradientBucket& bucket);

 private:
  std::unordered_map<const c10::TensorImpl*, int64_t> numbers_;
};

/// A row of numbers for each parameter, kept from step to step. Rows are replaced and not written to, so that a checkpoint in
/// the background sees one step's.
class ParameterMemory {
 public:
  /// Params: name – of the entries in a state: "error" for "error.0"
  explicit ParameterMemory(std::string name) : name_(std::move(name)) {}

  bool empty() const { return rows_.empty(); }
  /// Zeros where there is none yet.
  /// Throws: c10::ValueError – restored from a state, with another number of elements
  at::Tensor get(int64_t number, int64_t numel, const at::TensorOptions& options) const;
  void set(int64_t number, at::Tensor row) { rows_[number] = std::move(row); }

  void append_to(NamedTensors& state) const;
  /// Takes the entry of a state if it is one of these.
  /// Throws: c10::ValueError – it is, and no row of numbers
  bool take(const std::string& name, const at::Tensor& row);

 private:
  std::string name_;
  std::map<int64_t, at::Tensor> rows_;
};

/// What compression left out of the gradients.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(bool on) : on_(on) {}
  bool on() const { return on_; }

  /// `values` of the bucket and the errors of the step before; may be `values` itself.
  at::Tensor added_to(const at::Tensor& values, const GradientBucket& bucket);
  /// The errors of this step, unless its mean is not finite: it will be left out, and with it what was sent.
  void keep(const at::Tensor& errors, const at::Tensor& mean, const GradientBucket& bucket);

  ParameterNumbers& numbers() { return numbers_; }
  NamedTensors state() const;
  /// Throws: c10::ValueError – `state` has something else, or errors are not fed back
  void restore(const NamedTensors& state, const GradientHook& hook);

 private:
  bool on_;
  ParameterNumbers numbers_;
  ParameterMemory memory_{"error"};
  at::Tensor before_;  ///< what added_to() added
};

}  // namespace bellows::parallel
