#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <deque>
#include <unordered_map>
#include <vector>

#include "bellows/graph/recording/match.h"
#include "bellows/graph/recording/recording.h"

namespace bellows::graph::detail {

/// Stores equal geometries, constants and states once. Recordings of thousands of operators usually contain less than a
/// hundred different ones, which stay in the processor's first cache. The addresses stay valid until clear().
class ValuePool {
 public:
  const Geometry* geometry(const Geometry& geometry);
  const c10::IValue* constant(const c10::IValue& constant);
  const Program::State* state(const Program::State& state);
  /// Returns the number of stored values.
  size_t size() const { return geometries_.size() + constants_.size() + states_.size(); }
  void clear();

 private:
  std::deque<Geometry> geometries_;
  std::deque<c10::IValue> constants_;
  std::deque<Program::State> states_;
  std::unordered_multimap<size_t, const Geometry*> known_geometries_;
  std::unordered_multimap<size_t, const c10::IValue*> known_constants_;
};

/// The parts of a recorded operator that each followed call reads, in two or three cache lines. A complete recorded
/// operator takes about twenty lines. Following a long recording would mostly wait for memory if it read all of them.
class CompactOperator {
 public:
  struct Result {
    const Geometry* geometry = nullptr;
    size_t nbytes = 0;
    BufferId buffer = no_buffer;
    int argument = -1;  ///< see RecordedOperator::Result
    bool made = false, counted = true;
    bool list = false;  ///< part of a list
  };

  CompactOperator() = default;
  CompactOperator(const RecordedOperator& recorded, ValuePool& pool);

  /// Returns whether compare() would return Agreement::all.
  bool matches(const Arrival& arrival) const;

  const OperatorFacts* op = nullptr;
  When when = When::later;
  bool view = false;           ///< see RecordedOperator
  bool lifts_numbers = false;  ///< a number is an input
  BufferId buffers_after = 0;
  c10::SmallVector<Result, 1> results;  ///< the tensors of all results

 private:
  enum class Kind : uint8_t { tensor, list, constant, number, lifted_number, ignored };
  /// One argument. The tensors of a list follow it as further items.
  struct Item {
    Kind kind = Kind::ignored;
    BufferId buffer = no_buffer;  ///< of a list: the number of its tensors
    union {
      const Geometry* geometry = nullptr;
      const c10::IValue* constant;
    };

    bool is(BufferId got, const at::Tensor& tensor) const {
      return got == buffer && (got < 0 || geometry->fits(tensor));
    }
  };

  void add_argument(const Instruction::Argument& argument, ValuePool& pool);
  void add_results(const RecordedOperator& recorded, ValuePool& pool);
  static bool matches(const Item& item, const c10::IValue& value);

  const Program::State* state_ = nullptr;
  std::vector<Item> items_;
};

}  // namespace bellows::graph::detail
