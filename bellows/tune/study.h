#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/tune/pruner.h"
#include "bellows/tune/sampler.h"
#include "bellows/tune/trial.h"

namespace bellows::tune {

/// A hard constraint: a metric must not leave a range.
struct Constraint {
  std::string metric;
  double at_least = -std::numeric_limits<double>::infinity();
  double at_most = std::numeric_limits<double>::infinity();

  bool operator==(const Constraint&) const = default;

  /// Returns how far a value is outside of the range, relative to the exceeded bound. 0: the constraint is satisfied.
  double violation(double value) const;
  std::string text() const;  ///< such as "accuracy at least 0.95"
};

/// The definition of a search.
struct StudyOptions {
  SearchSpace space{};
  std::string objective = "accuracy";  ///< name of a metric
  bool maximize = true;
  std::vector<Constraint> constraints{};
  std::string sampler = "tpe";  ///< tpe, random or grid
  TpeOptions tpe{};
  std::optional<HalvingOptions> halving{};  ///< how trials are pruned; nothing: they are not
  uint64_t seed = 1;
  /// Other text that defines the search, such as the recipe. A resumed search must have the same text.
  std::string context{};

  /// Returns the value of the objective's metric, without the sign that Trial::objective adds.
  double metric_of(const Trial& trial) const { return maximize ? -trial.objective : trial.objective; }
};

/// Throws: c10::ValueError if there is no such sampler; the message suggests the nearest name
void check_sampler(const std::string& name);

/// Results of a trial.
struct TrialResult {
  std::map<std::string, double> metrics{};
  double seconds = 0;
  bool pruned = false;
  std::string failure{};  ///< not empty: the trial failed
};

/// A search for the best configuration. It proposes configurations, records results in `trials.jsonl` of its folder,
/// and never proposes a finished configuration again. A new object with the same folder continues the search, also
/// after `kill -9`: configurations that were running then run again.
/// Threads: not thread-safe
class Study {
 public:
  /// Params: folder – is created if it is missing. Empty: nothing is written
  ///         resume – continue the search in the folder. If false, the folder must not contain a search
  /// Throws: c10::ValueError if an option is invalid, the file is damaged, or the folder contains another search.
  ///         c10::Error if another process uses the folder, or if it cannot be written
  Study(StudyOptions options, const std::string& folder, bool resume);
  ~Study();

  /// Starts a trial. Returns nothing if all configurations of the space were tried.
  std::optional<Trial> ask();
  /// Records how good a trial is at a step. Reports of steps that do not increase are ignored.
  /// Returns: true if there is halving, and the trial should end: it is not promising, or it has already used more of
  /// the
  ///          objective than the best trial, so it cannot become the best one
  bool report(int64_t trial, const TrialReport& report);
  /// Records the end of a trial. If a metric of the objective or of a constraint is missing or
  /// not finite, the trial fails.
  void tell(int64_t trial, const TrialResult& result);

  const StudyOptions& options() const { return options_; }
  const std::vector<Trial>& trials() const { return trials_; }
  /// Number of trials with results, failed ones included.
  int64_t finished() const;

 private:
  struct Files;
  std::optional<Assignment> unseen();
  bool is_seen(const Assignment& values) const;
  void begin(Trial trial);
  void read_entries();
  void apply(const std::string& entry);

  const StudyOptions options_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<Files> files_;  ///< null if nothing is written
  std::vector<Trial> trials_;
  std::vector<Assignment> again_;  ///< configurations of interrupted trials
};

}  // namespace bellows::tune
