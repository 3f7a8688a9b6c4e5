#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/graph/program/operator_facts.h"
#include "bellows/graph/recording/dispatch_state.h"
#include "bellows/graph/recording/geometry.h"

namespace bellows::graph {

/// Buffers are numbered in the order in which a call first uses them. A value is a buffer with a geometry. Views,
/// in-place writes, and undeclared aliases are identified by their buffer.
using BufferId = int32_t;
inline constexpr BufferId no_buffer = -1;      ///< an undefined tensor
inline constexpr BufferId opaque_buffer = -2;  ///< a tensor that is not plain (is_plain())

struct Value {
  BufferId buffer = no_buffer;
  Geometry geometry{};
  bool operator==(const Value& other) const = default;
};

/// An argument of an operator: one tensor or a list of tensors, a number that may differ between calls, or a constant.
/// An omitted optional tensor is also a constant.
struct Argument {
  OperatorFacts::Kind kind = OperatorFacts::Kind::constant;
  bool lifted = false;           ///< the number has changed between calls, so it is an input of the graph
  std::vector<Value> tensors{};  ///< for a list: all tensors of the list
  c10::IValue constant{};        ///< the recorded value if the argument is not a tensor

  bool is_tensors() const { return kind < OperatorFacts::Kind::number; }
};

/// One tensor among an operator's results.
struct Output {
  Value value{};
  int argument = -1;    ///< if an argument is returned: its index among the tensors of all arguments; else -1
  bool made = false;    ///< the operator created this buffer
  bool counted = true;  ///< the tensor has a version counter; true also for inference tensors that detach() made
  size_t nbytes = 0;    ///< size of the buffer
};

struct Result {
  bool list = false;
  bool tensors = true;  ///< false: a number or another result that is not a tensor
  std::vector<Output> outputs{};
};

/// The time at which a followed operator runs.
enum class When : uint8_t {
  later,  ///< deferred: runs together with the other pending operators
  now,    ///< runs immediately, because it needs no pending value: factories, random operators
  flush,  ///< a barrier: runs immediately, after all pending operators; for host reads and unknown effects
};

/// One operator of a recording.
struct Node {
  const OperatorFacts* op = nullptr;
  When when = When::later;
  bool view = false;  ///< not executed, because all results are aliases of existing buffers
  std::vector<Argument> arguments{};
  std::vector<Result> results{};
  DispatchState dispatch_state{};
  int float32_precision = -1;  ///< -1 if the operator does not depend on it
  BufferId buffers_after = 0;  ///< number of buffers after the operator has run

  /// Returns the buffers that the operator writes, except new buffers.
  std::vector<BufferId> written() const;
};

/// One recording of a region: the operators of a call, in order.
class Graph {
 public:
  std::vector<Node> nodes{};
  int64_t calls = 0;  ///< number of calls that ended with the last node

  /// The origin of a buffer.
  struct Origin {
    int node = -1;      ///< the first node that used or created the buffer
    bool made = false;  ///< whether that node created the buffer; if not, it is an input of the graph
  };
  std::vector<Origin> origins() const;
  /// Returns one line per operator: results, name, arguments, written buffers, and the dispatch state if it changes.
  std::string to_text() const;
};

}  // namespace bellows::graph
