#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/tune/study_file.h"

namespace bellows::tune {

/// How the trials of a study run.
struct SearchOptions {
  std::string folder;                                   ///< of the study
  std::vector<std::string> command;                     ///< see TrialProgram
  int64_t jobs = 1;                                     ///< number of parallel trials
  std::function<void(const Study& study)> on_change{};  ///< called after a trial has started or ended
};

/// Runs trials in parallel processes until the study has as many finished trials as the file states, or until all
/// configurations were tried. Whenever there is a new best trial, its recipe is written to `best.yaml` in the folder of
/// the study.
/// Returns: 0, or the number of the signal that stopped the search (SIGINT, SIGTERM, SIGHUP or SIGQUIT)
/// Threads: call it on the main thread before other threads start, because it blocks signals on this thread
/// Throws:  c10::Error if a process cannot start or a file cannot be written; c10::ValueError if at least
///          three trials have ended and none of them reported the objective
int run_search(Study& study, const StudyFile& file, const SearchOptions& options);

}  // namespace bellows::tune
