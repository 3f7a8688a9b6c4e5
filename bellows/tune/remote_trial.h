#pragma once

#include <cstdint>
#include <memory>

#include "bellows/comm/rendezvous/store.h"
#include "bellows/tune/trial_process.h"

namespace bellows::tune {

/// Starts a trial in a process that calls serve_trials() (search.h). The processes exchange messages through a store.
/// Params: slot  – see remote_slots()
///         count – number of trials that this slot has received before
/// Throws: every call of the result throws c10::Error if the store has ended
std::unique_ptr<RunningTrial> remote_trial(const comm::Store& slot, int64_t count, const Trial& trial);
/// Tells a process that there are no more trials, and that it can end the current one.
void end_remote_trials(const comm::Store& slot, int64_t count) noexcept;

}  // namespace bellows::tune
