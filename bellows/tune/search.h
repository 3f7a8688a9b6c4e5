#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/comm/rendezvous/store.h"
#include "bellows/tune/study_file.h"

namespace bellows::tune {

/// How the trials of a study run.
struct SearchOptions {
  std::string folder;                ///< of the study
  std::vector<std::string> command;  ///< see TrialProgram
  int64_t jobs = 1;                  ///< number of parallel trials of this process
  /// If several processes on this machine run trials: the number of this process, and the number of all. They divide the
  /// cores.
  int part = 0, parts = 1;
  std::vector<comm::Store> remote{};                    ///< slots of other processes, see serve_trials()
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

/// Returns the cores of each parallel trial of this process.
std::vector<std::vector<int>> cores_of(const SearchOptions& options);

/// Returns the slots of a process that runs trials for the search of rank 0, as parts of the store of a job.
std::vector<comm::Store> remote_slots(const comm::Store& store, int rank, int64_t jobs);

/// Runs trials for the search of another process, until that search ends. Both processes must have read the same study
/// file.
/// Params:  slots – of this process, see remote_slots(). Each slot runs one trial at a time
/// Returns: 0, or the number of the signal that stopped this process
/// Threads: like run_search()
/// Throws:  c10::Error if a process cannot start, a file cannot be written, or the store has ended
int serve_trials(const StudyFile& file, const SearchOptions& options, const std::vector<comm::Store>& slots);

}  // namespace bellows::tune
