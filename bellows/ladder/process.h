#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/plan/candidates.h"

namespace bellows::train {

/// A job that lives in a child of this process, so that neither the memory that another job has kept, nor threads, nor
/// anything else that cannot be undone stands between two jobs that are compared. It makes the job with `make`, as this
/// process would. Where that is not possible, because this process already has threads, the job lives here.
/// Threads: one owner
/// Throws:  what `make` throws; c10::Error – the child ended early
std::unique_ptr<LadderJob> in_own_process(const std::function<std::unique_ptr<LadderJob>()>& make);

/// make_ladder_job() in a process of its own; a device may not like to be shared by a fork, so only on the CPU.
std::unique_ptr<LadderJob> ladder_job_in_own_process(const Recipe& recipe, uint64_t seed);

/// What `make` says in a child of this process, which then ends: the threads that it starts are gone with it. Where that is
/// not possible, as above, it is called here.
/// Throws: as in_own_process()
std::string text_of_own_process(const std::function<std::string()>& make);

/// plan_candidates(recipe, length), in a process of its own where that is possible: what predicts starts threads, and
/// then in_own_process() is of no use any more.
std::vector<PlanCandidate> candidates_in_own_process(const Recipe& recipe, int64_t length);

}  // namespace bellows::train
