#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/plan/candidates.h"

namespace bellows::train {

/// Runs a job in a child process. So memory that another job has retained, threads and other permanent effects do not
/// influence a comparison. The child creates the job with `make`. If this process already has threads, fork is not
/// possible, and the job runs in this process.
/// Threads: not thread-safe
/// Throws:  exceptions of `make`; c10::Error if the child ends early
std::unique_ptr<LadderJob> in_own_process(const std::function<std::unique_ptr<LadderJob>()>& make);

/// Runs make_ladder_job() in a child process. On the CPU only, because accelerators may not support fork.
std::unique_ptr<LadderJob> ladder_job_in_own_process(const Recipe& recipe, uint64_t seed);

/// Runs `make` in a child process and returns its text. The threads that it starts end with the child. If fork is not
/// possible (see above), it runs in this process.
/// Throws: like in_own_process()
std::string text_of_own_process(const std::function<std::string()>& make);

/// Runs plan_candidates(recipe, length) in a child process if possible, because planning starts threads, after which
/// in_own_process() could not fork.
std::vector<PlanCandidate> candidates_in_own_process(const Recipe& recipe, int64_t length);

}  // namespace bellows::train
