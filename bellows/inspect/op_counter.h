#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::inspect {

/// What a group of operator calls did.
struct OpCount {
  int64_t calls = 0;
  int64_t flops = 0;
  int64_t bytes = 0;   ///< sizes of the tensors read and written; views and uninitialised allocations count nothing
  double host_us = 0;  ///< wall time inside the operators on the calling thread; on an accelerator that of the launch
  OpCount& operator+=(const OpCount& other);
};

/// One line of a report: the calls of one operator for one module in one direction.
struct OpRow {
  std::string module;  ///< path in the model; "" for the model itself and for what lies outside of it
  std::string op;      ///< "aten::convolution"
  bool backward = false;
  OpCount count;
};

/// What an OpCounter saw.
struct OpReport {
  std::vector<OpRow> rows;

  OpCount total() const;
  /// One row an operator, the largest first: FLOPs, then bytes. Forward and backward apart.
  std::vector<OpRow> by_operator() const;
  /// One row a module with all that lies below it, in the tree's order; `op` is empty, both directions together.
  /// Params: depth – levels below the model, negative for all
  std::vector<OpRow> by_module(int depth = -1) const;
  /// Both tables, 80 columns wide.
  std::string to_text(int depth = 3) const;
  /// {"total": {calls, flops, bytes, host_us}, "rows": [{module, op, backward, calls, …}]}
  std::string to_json() const;
};

/// Counts the operators that this thread, and autograd for it, runs while the counter lives: calls, FLOPs, bytes and
/// host time, by operator and module.
///
/// What is counted: operators as they are below autograd. Composites (aten::linear, aten::matmul) count as the
/// operators they are made of, whether or not they arrive whole; what a kernel calls inside itself does not count
/// again. FLOPs are those of flop_formula(), at the outermost operator that has one, and equal
/// torch.utils.flop_counter's where both have a formula (tests/inspect/op_counter_test.cpp). Modules: docs/inspect.md.
/// Threads: make and destroy it on one thread; report() and reset() from any
class OpCounter {
 public:
  OpCounter();
  /// Counts by module, too.
  explicit OpCounter(const Model& model);
  ~OpCounter();
  OpCounter(const OpCounter&) = delete;
  OpCounter& operator=(const OpCounter&) = delete;

  /// All that was counted so far.
  /// Throws:   what went wrong while counting, if anything did
  OpReport report() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs `work` under an OpCounter.
OpReport count_ops(const Model& model, const std::function<void()>& work);

}  // namespace bellows::inspect
