#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

/// Totals of a group of operator calls.
struct OpCount {
  int64_t calls = 0;
  int64_t flops = 0;
  int64_t bytes = 0;   ///< sizes of the tensors read and written; views and uninitialized allocations do not count
  double host_us = 0;  ///< wall time in the operators on the calling thread; on an accelerator, the time of the launch
  OpCount& operator+=(const OpCount& other);
};

/// One row of a report: the calls of one operator in one module, forward or backward.
struct OpRow {
  std::string module;  ///< path in the model; "" for the model itself and for operators outside it
  std::string op;      ///< "aten::convolution"
  bool backward = false;
  OpCount count;
};

struct OpReport {
  std::vector<OpRow> rows;

  OpCount total() const;
  /// One row per operator, ordered by FLOPs and then bytes, largest first. Forward and backward have separate rows.
  std::vector<OpRow> by_operator() const;
  /// One row per module, including the modules below it, in the order of the tree. `op` is empty; forward and backward
  /// are combined.
  /// Params: depth – number of levels below the model; negative for all
  std::vector<OpRow> by_module(int depth = -1) const;
  /// Both tables, 80 columns wide.
  std::string to_text(int depth = 3) const;
  /// {"total": {calls, flops, bytes, host_us}, "rows": [{module, op, backward, calls, …}]}
  std::string to_json() const;
};

/// While it lives, counts the operators that run on this thread and in autograd's workers for it: calls, FLOPs, bytes
/// and host time, by operator and module.
///
/// Operators are counted below autograd. Composites (aten::linear, aten::matmul) count as the operators of which they
/// consist, even if they are dispatched as a whole. Operators called inside a kernel are not counted again. FLOPs are
/// those of flop_formula() at the outermost operator that has one. They equal torch.utils.flop_counter if both have a
/// formula (tests/inspect/op_counter_test.cpp). docs/inspect.md describes the assignment to modules.
/// Threads: create and destroy it on the same thread; report() and reset() can be called on any thread
class OpCounter {
 public:
  OpCounter();
  /// Also counts by module.
  explicit OpCounter(const Model& model);
  ~OpCounter();
  OpCounter(const OpCounter&) = delete;
  OpCounter& operator=(const OpCounter&) = delete;

  /// All counts so far.
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
