#pragma once

#include <optional>
#include <unordered_map>

#include "bellows/graph/recording/graph.h"

namespace bellows::graph::detail {

/// Remembers the results of trial runs (stand_ins.h). An operator that is called again with arguments of the same
/// geometries, for example in the next layer of a model, needs no second trial run.
class TrialResults {
 public:
  /// Returns the node of an operator with the results of an earlier trial run, or nothing if there was none.
  /// Params: begun – a node without results
  ///         next  – the number of the next new buffer
  std::optional<Node> find(const Node& begun, BufferId next) const;
  /// Params: node – a node with the results of a trial run
  void add(const Node& node);

 private:
  static constexpr size_t most_kept = 4096;

  /// By operator and sizes. Buffers are numbered in the order in which the node uses them.
  std::unordered_multimap<size_t, Node> known_;
};

}  // namespace bellows::graph::detail
