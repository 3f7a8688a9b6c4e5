#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "bellows/comm/group.h"
#include "bellows/ladder/ladder.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Creates the job of one rank, in the process of this rank.
using MakeRankJob = std::function<std::unique_ptr<LadderJob>(const comm::Group& ranks)>;

/// Runs a job on several ranks. Each rank is a child process on this machine, with `threads` intra-op threads. The ranks
/// communicate within the machine. Functions of the job run on all ranks at the same time. Their result is that of
/// rank 0, except for take_peak_bytes() and sent_bytes(), which return the maximum over the ranks. If a rank fails, all
/// ranks end.
/// Threads: not thread-safe
/// Throws:  c10::ValueError if this process has several threads, because it cannot fork then. Exceptions of `make`;
///          c10::Error if a child process ends early
std::unique_ptr<LadderJob> on_ranks(const MakeRankJob& make, int ranks, int64_t threads);

/// Runs make_ladder_job() on several ranks.
/// Throws: like on_ranks(); c10::ValueError if the recipe's device is not the CPU
std::unique_ptr<LadderJob> ladder_job_on_ranks(const Recipe& recipe, uint64_t seed, int ranks, int64_t threads);

}  // namespace bellows::train
