#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/graph/recording/graph.h"
#include "bellows/graph/recording/segment.h"

namespace bellows::graph::detail {

/// A node of a recording, and what came next in the calls so far.
struct Step {
  Node node{};
  Step* parent = nullptr;
  size_t depth = 0;
  std::vector<std::unique_ptr<Step>> next{};  ///< the one that was followed last first
  int64_t ended = 0;                          ///< calls that had this as their last operator
  uint64_t last_used = 0;
  std::optional<std::string> site{};  ///< who calls it, where it was a barrier once: looking for that takes a while
  Plans plans{};                      ///< of segments that end here
};

/// All recordings of a region, as a tree: calls that begin alike share their first steps. A recording is a way from the root to a leaf.
class RecordingTree {
 public:
  Step* root() { return &root_; }
  /// Hangs a step behind another one.
  Step* append(Step* parent, Node node);
  /// A call has ended at `last`.
  void end_call(Step* last);
  /// Drops the recordings that were not used for longest until there are at most `most`. Returns how many were dropped.
  int prune(size_t most);

  /// The most that a call has met so far.
  size_t most_buffers() const { return most_buffers_; }
  size_t recordings() const { return leaves().size(); }
  std::vector<Graph> graphs() const;

 private:
  std::vector<const Step*> leaves() const;

  Step root_;
  uint64_t calls_ = 0;
  size_t most_buffers_ = 0;
};

}  // namespace bellows::graph::detail
