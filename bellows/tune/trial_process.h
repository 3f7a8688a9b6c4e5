#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "bellows/comm/launch/rank_process.h"
#include "bellows/tune/study.h"
#include "bellows/tune/study_file.h"

namespace bellows::tune {

/// The program that trains one recipe. It receives the arguments `--recipe FILE --json FILE`.
struct TrialProgram {
  std::vector<std::string> command;        ///< such as {"bellows", "train"}
  std::vector<int> cores{};                ///< cores on which the process runs; empty: all
  std::string recipe_option = "--recipe";  ///< empty: the recipe is an argument without an option
};

/// A trial that is running, on this machine or on another one.
/// Threads: not thread-safe
class RunningTrial {
 public:
  RunningTrial() = default;
  virtual ~RunningTrial() = default;
  RunningTrial(const RunningTrial&) = delete;
  RunningTrial& operator=(const RunningTrial&) = delete;

  virtual int64_t number() const = 0;
  /// File descriptors that become readable when there is news.
  virtual std::vector<int> outputs() const = 0;
  /// Returns new reports, and ends the trial if it exceeds a limit. Call this function several times a second.
  virtual std::vector<TrialReport> watch() = 0;
  /// Whether the trial has not ended, as far as ended() has noticed.
  virtual bool running() const = 0;
  /// Ends the trial because it is not promising.
  virtual void prune() = 0;
  /// Returns whether the trial has ended. Call result() then.
  virtual bool ended() = 0;
  virtual TrialResult result() = 0;
};

/// A training run in its own process, with the files of the run in its own folder. The destructor kills the process. If
/// this process is killed, the trial is killed, too. The out-of-memory killer of the system selects trials before other
/// processes.
class TrialProcess final : public RunningTrial {
 public:
  /// Starts the process.
  /// Params: folder – is created and replaced
  /// Throws: c10::ValueError if the keys of the recipe do not fit together; c10::Error if the system cannot start the
  ///         process or write its files
  TrialProcess(const StudyFile& file, const Trial& trial, const std::string& folder, const TrialProgram& program,
               const comm::Signals& signals);

  int64_t number() const override { return number_; }
  std::vector<int> outputs() const override { return {process_.outputs().begin(), process_.outputs().end()}; }
  std::vector<TrialReport> watch() override;
  bool running() const override { return process_.running(); }
  void prune() override;
  bool ended() override;
  TrialResult result() override;

 private:
  void set_limits(const std::vector<int>& cores) const;
  void stop(std::string reason);
  std::string failure() const;
  std::map<std::string, double> metrics() const;
  double spent(double trained_seconds) const;

  const StudyFile& file_;
  const int64_t number_;
  const std::string folder_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t evaluations_ = 0;
  std::streamoff log_position_ = 0;
  std::string stopped_;     ///< why this object ended the process
  std::string last_error_;  ///< last line of standard error
  bool pruned_ = false;
  std::ofstream output_;
  const comm::OutputLine on_line_ = [this](int, bool error, std::string_view line) {
    output_ << line << '\n';
    if (error && !line.empty()) last_error_ = line;
  };
  comm::RankProcess process_;
};

/// Returns the number of the signal that requests a stop, or 0. After request_stop(), by a handler of a signal that
/// arrived before `signals` existed, it is SIGTERM.
int stop_signal(const comm::Signals& signals);

/// Returns a message as the reason of a failure, which is a part of a sentence: without the final dot.
std::string failure_words(std::string message);

/// Returns the folder of a trial, such as "study/trial-0007".
std::string trial_folder(const std::string& folder, int64_t number);

/// Returns the cores of each of `jobs` parallel trials. The cores that this process may use are divided evenly. If
/// there are more trials than cores, several trials share a core.
std::vector<std::vector<int>> divide_cores(int64_t jobs);

}  // namespace bellows::tune
