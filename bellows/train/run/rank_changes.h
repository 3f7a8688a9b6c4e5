#pragma once

#include <functional>
#include <optional>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/comm/group.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Throws: c10::ValueError if a run with this recipe cannot continue when ranks are lost
void check_replaceable_ranks(const Recipe& recipe);

/// Values of `progress` of a process that has no state.
constexpr int64_t at_start = -1, no_progress = -2;

/// The agreement of the ranks of a new world.
struct Newest {
  /// The state from which all ranks continue, without generators; none if all ranks have made the same progress.
  std::optional<checkpoint::State> state;
  int64_t progress = 0;
  bool save = false;  ///< whether a rank needs a new checkpoint
};

/// Brings the ranks of a new world to the same step. If their progress differs, the rank that is farthest sends its state
/// to all ranks. Collective.
/// Params:  progress – increases with each step; at_start if this process has just started, and no_progress if it also
///                     took the place of a lost rank
///          save – whether this rank was writing a checkpoint
///          own – returns the state of this rank
/// Throws:  c10::Error if all ranks with a state were lost
Newest newest_state(const comm::Group& ranks, int64_t progress, bool save,
                    const std::function<checkpoint::State()>& own);

}  // namespace bellows::train
