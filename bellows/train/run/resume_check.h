#pragma once

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/train/run/run_record.h"

namespace bellows::train {

/// Compares the settings of a checkpoint with those of this run: recipe, data, libtorch, processor, threads. Logs the
/// differences.
/// Params: accept_changes – log differences that change results, instead of throwing
/// Throws: c10::ValueError if differences change results and are not accepted. Also, regardless of accept_changes, if
///         the checkpoint is within an epoch and batch size, seed, handling of bad samples or data have changed,
///         because the rest of the epoch would consist of other samples
void check_resume(const checkpoint::State& state, const RunRecord& now, bool accept_changes);

}  // namespace bellows::train
