#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/plan/candidates.h"

namespace bellows::train {

/// Runs a job in a child process. A comparison is therefore not influenced by another job's retained memory, threads or
/// other permanent effects. The child process creates the job with `make`. If this process already has threads, it
/// cannot fork, and the job runs in this process.
/// Threads: not thread-safe
/// Throws:  exceptions from `make`; c10::Error if the child process ends early
std::unique_ptr<LadderJob> in_own_process(const std::function<std::unique_ptr<LadderJob>()>& make);

/// Runs make_ladder_job() in a child process. This happens only on the CPU, because accelerators may not support fork.
std::unique_ptr<LadderJob> ladder_job_in_own_process(const Recipe& recipe, uint64_t seed);

/// Runs `make` in a child process and returns the text that `make` returns. Threads that `make` starts end with the
/// child process. If this process cannot fork (see above), `make` runs in this process.
/// Throws: like in_own_process()
std::string text_of_own_process(const std::function<std::string()>& make);

/// If possible, runs plan_candidates(recipe, length) in a child process. Planning starts threads, and in_own_process()
/// cannot fork a process that has threads.
std::vector<PlanCandidate> candidates_in_own_process(const Recipe& recipe, int64_t length);

}  // namespace bellows::train
