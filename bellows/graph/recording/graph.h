#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/graph/program/operator_facts.h"
#include "bellows/graph/recording/dispatch_state.h"
#include "bellows/graph/recording/geometry.h"

namespace bellows::graph {

/// Buffers are numbered in the order in which a call first uses them. A value is a buffer seen through a geometry.
/// Views, in-place writes, and aliases that no schema declares are identified by their buffer.
using BufferId = int32_t;
inline constexpr BufferId no_buffer = -1;      ///< an undefined tensor
inline constexpr BufferId opaque_buffer = -2;  ///< a tensor that is not plain (is_plain())

struct Value {
  BufferId buffer = no_buffer;
  Geometry geometry{};
  bool operator==(const Value& other) const = default;
};

/// An argument of an operator: tensors (one, or those of a list), a number that may differ from call to call, or a
/// constant. An omitted optional tensor is a constant, too.
struct Argument {
  OperatorFacts::Kind kind = OperatorFacts::Kind::constant;
  bool lifted = false;           ///< a number that has changed between calls: an input of the graph
  std::vector<Value> tensors{};  ///< for a list: as many as it had
  c10::IValue constant{};        ///< the recorded value, if it is not a tensor

  bool is_tensors() const { return kind < OperatorFacts::Kind::number; }
};

/// One tensor among an operator's results.
struct Output {
  Value value{};
  int argument = -1;    ///< index of the operator's tensor, counted over all arguments, that it returns; -1: none
  bool made = false;    ///< the operator made this buffer
  bool counted = true;  ///< has a version counter; this includes inference tensors made by detach()
  size_t nbytes = 0;    ///< size of the buffer
};

struct Result {
  bool list = false;
  bool tensors = true;  ///< false: a number or another result that is not a tensor
  std::vector<Output> outputs{};
};

/// The time at which a followed operator runs.
enum class When : uint8_t {
  later,  ///< deferred: with the other pending operators
  now,    ///< immediately, because it needs no pending value: factories, random operators
  flush,  ///< a barrier: immediately, after all pending operators. The host needs a value, or its effects are unknown
};

/// One operator of a recording.
struct Node {
  const OperatorFacts* op = nullptr;
  When when = When::later;
  bool view = false;  ///< not executed: all results alias existing buffers
  std::vector<Argument> arguments{};
  std::vector<Result> results{};
  DispatchState dispatch_state{};
  int float32_precision = -1;  ///< -1: the operator does not depend on it
  BufferId buffers_after = 0;  ///< number of buffers after it has run

  /// Returns: the buffers that the operator writes, except new ones
  std::vector<BufferId> written() const;
};

/// One recording of a region: the operators of a call, in order.
class Graph {
 public:
  std::vector<Node> nodes{};
  int64_t calls = 0;  ///< number of calls that ended with the last node

  /// The origin of a buffer.
  struct Origin {
    int node = -1;      ///< the first node that used or made it
    bool made = false;  ///< made by that node; otherwise an input of the graph
  };
  std::vector<Origin> origins() const;
  /// One line per operator: results, name, arguments, written buffers, and the dispatch state where it changes.
  std::string to_text() const;
};

}  // namespace bellows::graph
