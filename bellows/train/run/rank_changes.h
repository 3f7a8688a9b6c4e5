#pragma once

#include <optional>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/comm/group.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Params: launched_ranks – number of ranks that the launcher started, before any rank was lost
/// Throws: c10::ValueError if a run with this recipe cannot continue when ranks are lost, or if the mesh has another
///         number of ranks
void check_replaceable_ranks(const Recipe& recipe, int launched_ranks);

/// The number of ranks that together hold a replica of the model: the axis `shard` of the mesh, or 1.
int ranks_per_replica(const Recipe& recipe);

/// Progress increases with each step. Within a step, it increases with the evaluation and the end of an epoch.
constexpr int64_t progress_per_step = 4;
/// Values of `progress` of a process that has no state.
constexpr int64_t at_start = -1, no_progress = -2;

/// The part of the run's state that a rank holds after some progress.
struct Version {
  int64_t progress = at_start;
  checkpoint::State state;
};

/// The state with which a rank enters a new world.
struct OwnState {
  /// Up to two versions, the newest first. Ranks that shard the state may have made the last step or not, so each of them
  /// needs the version before it, too.
  std::vector<Version> versions = {};
  bool is_new = false;  ///< without versions: whether the process took the place of a lost one
  bool saving = false;  ///< whether this rank was writing a checkpoint
};

/// The agreement of the ranks of a new world.
struct Newest {
  /// The version from which this rank continues; none if no rank has made progress. If the ranks had made different
  /// progress, the generators are missing.
  std::optional<Version> version;
  bool save = false;  ///< whether a rank needs a new checkpoint
};

/// Brings the ranks of a new world to the same step: the newest one of which all parts are left. Ranks without their part
/// of it get the part from a rank that has the same position in its replica. Collective.
/// Params:  ranks_per_replica – rank r holds part r % ranks_per_replica of the state
/// Cost:    each part is sent only to the ranks that lack it
/// Throws:  c10::Error if parts of the state were lost
Newest newest_state(const comm::Group& ranks, int ranks_per_replica, const OwnState& own);

}  // namespace bellows::train
