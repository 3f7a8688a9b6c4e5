#pragma once

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/train/run/run_record.h"

namespace bellows::train {

/// Compares what a checkpoint was made with and what this run has: recipe, data, libtorch, processor, threads. Says what
/// differs in the log.
/// Params: accept_changes – differences that change the run's numbers are said, too, but not refused
/// Throws: c10::ValueError – one of those, and not allowed; batch size, seed or treatment of bad samples changed inside
///         an epoch, or other data there: the rest of the epoch would be other samples, whatever is allowed
void check_resume(const checkpoint::State& state, const RunRecord& now, bool accept_changes);

}  // namespace bellows::train
