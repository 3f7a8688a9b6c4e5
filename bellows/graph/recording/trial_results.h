#pragma once

#include <optional>
#include <unordered_map>

#include "bellows/graph/recording/recording.h"

namespace bellows::graph::detail {

/// Remembers the results of trial runs (stand_ins.h). An operator that is called again with arguments of the same
/// geometries, for example in the next layer of a model, needs no second trial run.
class TrialResults {
 public:
  /// Returns an operator with the results of an earlier trial run, or nothing if there was none.
  /// Params: begun – a recorded operator without results
  ///         next  – the number of the next new buffer
  std::optional<RecordedOperator> find(const RecordedOperator& begun, BufferId next) const;
  /// Params: recorded – an operator with the results of a trial run
  void add(const RecordedOperator& recorded);

 private:
  static constexpr size_t most_kept = 4096;

  /// By operator and sizes. Buffers are numbered in the order in which the operator uses them.
  std::unordered_multimap<size_t, RecordedOperator> known_;
};

}  // namespace bellows::graph::detail
