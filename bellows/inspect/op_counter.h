#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

/// The totals of a group of operator calls.
struct OpCount {
  int64_t calls = 0;
  int64_t flops = 0;
  /// Sizes of the tensors that were read and written. Views and uninitialized allocations do not count.
  int64_t bytes = 0;
  /// Wall time of the operators on the calling thread. On an accelerator, this is the time of the launch.
  double host_us = 0;
  OpCount& operator+=(const OpCount& other);
};

/// One row of a report: all calls of one operator in one module, separately for forward and backward.
struct OpRow {
  /// Path in the model. Empty for the model itself and for operators outside the model.
  std::string module;
  std::string op;  ///< for example "aten::convolution"
  bool backward = false;
  OpCount count;
};

struct OpReport {
  std::vector<OpRow> rows;

  OpCount total() const;
  /// Returns one row per operator, largest first: ordered by FLOPs, then by bytes. Forward and backward have separate
  /// rows.
  std::vector<OpRow> by_operator() const;
  /// Returns one row per module, in the order of the tree. A row includes all modules below its module. `op` is empty,
  /// and forward and backward are combined.
  /// Params: depth – number of levels below the model; all levels if negative
  std::vector<OpRow> by_module(int depth = -1) const;
  /// Returns both tables as text, 80 columns wide.
  std::string to_text(int depth = 3) const;
  /// Returns {"total": {calls, flops, bytes, host_us}, "rows": [{module, op, backward, calls, …}]}.
  std::string to_json() const;
};

/// While this object exists, it counts the operators that run on this thread and in autograd's workers for this thread.
/// It counts calls, FLOPs, bytes and host time by operator and module.
///
/// Operators are counted below autograd. A composite operator (aten::linear, aten::matmul) counts as the operators of
/// which it consists, even if it is dispatched as one operator. Operators that a kernel calls are not counted again.
/// FLOPs come from flop_formula() of the outermost operator that has a formula. They equal those of
/// torch.utils.flop_counter for operators for which both have a formula (tests/inspect/op_counter_test.cpp).
/// docs/inspect.md describes how operators are assigned to modules.
/// Threads: create and destroy the object on the same thread. report() and reset() can be called on any thread
class OpCounter {
 public:
  OpCounter();
  /// With a model, operators are also counted by module.
  explicit OpCounter(const Model& model);
  ~OpCounter();
  OpCounter(const OpCounter&) = delete;
  OpCounter& operator=(const OpCounter&) = delete;

  /// Returns all counts so far.
  /// Throws: any exception that occurred while counting
  OpReport report() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs `work` under an OpCounter.
OpReport count_ops(const Model& model, const std::function<void()>& work);

}  // namespace bellows::inspect
