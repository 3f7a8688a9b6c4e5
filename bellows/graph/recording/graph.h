#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/graph/program/operator_facts.h"
#include "bellows/graph/recording/dispatch_state.h"
#include "bellows/graph/recording/geometry.h"

namespace bellows::graph {

/// Buffers are numbered in the order in which a call first met them. A value is a buffer seen through a geometry: views, values that
/// are written in place, and aliases that no schema declares, are told by their buffer.
using BufferId = int32_t;
inline constexpr BufferId no_buffer = -1;      ///< an undefined tensor
inline constexpr BufferId opaque_buffer = -2;  ///< a tensor that is_plain() does not say yes to

struct Value {
  BufferId buffer = no_buffer;
  Geometry geometry{};
  bool operator==(const Value& other) const = default;
};

/// An argument of an operator: tensors (one, or those of a list), a number that may differ from call to call, or a constant, which
/// an optional tensor that is left out is, too.
struct Argument {
  OperatorFacts::Kind kind = OperatorFacts::Kind::constant;
  bool lifted = false;           ///< a number that was seen to differ: an input of the graph
  std::vector<Value> tensors{};  ///< as many as a list had
  c10::IValue constant{};        ///< what is no tensor, as it was when recorded

  bool is_tensors() const { return kind < OperatorFacts::Kind::number; }
};

/// One tensor among an operator's results.
struct Output {
  Value value{};
  int argument = -1;    ///< which of the operator's tensors, counted over all arguments, is handed back; -1: none
  bool made = false;    ///< the operator made this buffer
  bool counted = true;  ///< has a version counter: also an inference tensor that detach() made
  size_t nbytes = 0;    ///< of the buffer
};

struct Result {
  bool list = false;
  bool tensors = true;  ///< false: a number or anything else that is no tensor
  std::vector<Output> outputs{};
};

/// When a followed operator runs.
enum class When : uint8_t {
  later,  ///< with its graph
  now,    ///< at once, since it needs no value that is pending: factories, random numbers
  flush,  ///< at once, after all that is pending: a value goes to the host, or libtorch alone knows what happens
};

/// One operator of a recording.
struct Node {
  const OperatorFacts* op = nullptr;
  When when = When::later;
  bool view = false;  ///< nothing to run: all results alias buffers that are there
  std::vector<Argument> arguments{};
  std::vector<Result> results{};
  Ambient ambient{};
  int float32_precision = -1;  ///< -1: does not matter to this operator
  BufferId buffers_after = 0;  ///< how many there are when it has run

  /// Buffers that the operator writes, its new ones left out.
  std::vector<BufferId> written() const;
};

/// One way through a region: the operators that a call issued, in order.
class Graph {
 public:
  std::vector<Node> nodes{};
  int64_t calls = 0;  ///< how many ended with the last node

  /// Where a buffer comes from.
  struct Origin {
    int node = -1;      ///< the first that used or made it
    bool made = false;  ///< made by it; otherwise an input of the graph
  };
  std::vector<Origin> origins() const;
  /// One line an operator: results, name, arguments, what it writes, and the ambient state where that changes.
  std::string to_text() const;
};

}  // namespace bellows::graph
