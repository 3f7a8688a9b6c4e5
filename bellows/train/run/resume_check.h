#pragma once

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/train/run/run_record.h"

namespace bellows::train {

/// Compares the settings of a checkpoint with the settings of this run and logs the differences. It compares recipe,
/// data, libtorch, processor and threads.
/// Params: accept_changes – if true, differences that change results are only logged. If false, they cause an exception
/// Throws: c10::ValueError if differences change results and are not accepted. Regardless of accept_changes, it also
///         throws in two cases:
///         - The model or the optimizer differs.
///         - The checkpoint is within an epoch, and batch size, seed, handling of bad samples or data differ. The rest
///           of the epoch would then consist of different samples.
void check_resume(const checkpoint::State& state, const RunRecord& now, bool accept_changes);

}  // namespace bellows::train
