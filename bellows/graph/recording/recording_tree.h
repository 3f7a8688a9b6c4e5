#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/graph/recording/compact_operator.h"
#include "bellows/graph/recording/recording.h"
#include "bellows/graph/recording/segment.h"
#include "bellows/graph/recording/trial_results.h"

namespace bellows::graph::detail {

/// An operator of a recording, and the operators that followed it in the calls so far.
struct Step {
  CompactOperator compact{};  ///< of `recorded`
  Step* parent = nullptr;
  std::vector<std::unique_ptr<Step>> next{};  ///< the most recently followed step first
  RecordedOperator recorded{};
  size_t depth = 0;
  int64_t ended = 0;  ///< number of calls that ended with this operator
  uint64_t last_used = 0;
  /// The call site of the operator if it was a barrier. It is stored because finding it is slow.
  std::optional<std::string> site{};
  Plans plans{};  ///< plans of the segments that end here
};

/// All recordings of a region as a tree. Calls that begin with the same operators share their first steps. A recording
/// is a path from the root to a leaf.
class RecordingTree {
 public:
  Step* root() { return &root_; }
  /// Adds a step after `parent`.
  Step* append(Step* parent, RecordedOperator recorded);
  /// Call this function after each change of `step->recorded`.
  void renew(Step& step) { step.compact = CompactOperator(step.recorded, pool_); }
  /// Records that a call ended at `last`.
  void end_call(Step* last);
  /// Drops the least recently used recordings until at most `most` recordings remain.
  /// Returns: the number of dropped recordings
  int prune(size_t most);

  /// Returns the largest number of buffers in any call so far.
  size_t most_buffers() const { return most_buffers_; }
  size_t recordings() const { return leaves().size(); }
  TrialResults& trial_results() { return trial_results_; }
  std::vector<Recording> all() const;

 private:
  std::vector<const Step*> leaves() const;
  void renew_pool();

  Step root_;
  uint64_t calls_ = 0;
  size_t most_buffers_ = 0;
  TrialResults trial_results_;
  ValuePool pool_;  ///< of all steps
  size_t renewed_pool_ = 0;
};

}  // namespace bellows::graph::detail
