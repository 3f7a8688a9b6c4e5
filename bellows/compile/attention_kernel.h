#pragma once

#include <memory>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::compile_detail {

/// The operators of one attention, forward or backward, that a kernel replaces. Operands that do not exist have no
/// value.
struct FusedAttention {
  /// Adds `mask` to the logits, or replaces logits where it is true.
  struct Mask {
    graph::Operand mask{};
    graph::Geometry::Numbers logical{};  ///< sizes of the masked logits, to which the mask is broadcast
    bool adds = false;
    bool inverted = false;         ///< replaces logits where the mask is false
    float value = 0;               ///< replaces logits
    graph::Operand replacement{};  ///< a tensor without dims instead of `value`
  };

  bool backward = false;
  int place = 0;                ///< instruction in whose place the kernel runs
  std::vector<int> replaced{};  ///< instructions
  int64_t batch = 0, rows = 0, columns = 0;
  double scale = 1;
  std::vector<Mask> masks{};
  graph::Operand query{};    ///< [batch, rows, width]
  graph::Operand key{};      ///< [batch, width, columns]
  graph::Operand value{};    ///< [batch, columns, value width]
  graph::Operand dropout{};  ///< like `weights`
  graph::Operand weights{};  ///< [batch, rows, columns] or [outer batch, inner batch, rows, columns], row-major
  bool stores_weights = false;
  bool empty_rows_are_zero = false;     ///< as in _safe_softmax; otherwise, they are NaN
  graph::Operand dropped{};             ///< receives the weights after dropout
  graph::Operand result{}, gradient{};  ///< forward: the result; backward: its gradient
  graph::Operand query_gradient{}, key_gradient{}, value_gradient{};

  void sizes(const graph::Geometry::Numbers& of_logits) {
    batch = of_logits[0];
    rows = of_logits[1];
    columns = of_logits[2];
  }
  /// Operands and results of the kernel, in order.
  std::vector<graph::Operand> operands() const;
  std::vector<graph::Operand> results() const;
};

std::shared_ptr<const graph::Kernel> attention_kernel(const FusedAttention& attention);

}  // namespace bellows::compile_detail
