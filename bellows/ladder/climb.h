#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/ladder/measurement.h"

namespace bellows::train {

/// Checks the options that describe timed windows.
/// Throws: c10::ValueError if an option is out of range
void check_measurement(const LadderOptions& options);
/// Checks all options of a ladder that trains.
/// Throws: c10::ValueError if an option is out of range
void check_training(const LadderOptions& options);

/// The course of a ladder, which ladder.h, inference_ladder.h and comparison.h share. It
/// measures rung 0, one rung per technique, and the total. It reports progress, and handles time limits, stop requests
/// and errors. Subclasses decide what is measured. Rungs have the numbers of their techniques, starting at 1.
class LadderClimb {
 public:
  using OnEvent = std::function<void(const LadderEvent&)>;

  virtual ~LadderClimb() = default;
  /// Throws: exceptions of measure_start()
  LadderReport run();

 protected:
  /// Params: rungs       – one result per technique, with its title and its expectation
  ///         plain_batch – batch size in which `eval_every_steps` is counted
  LadderClimb(const LadderOptions& options, const LadderInstruments& instruments, int64_t plain_batch, OnEvent on_event,
              std::vector<RungResult> rungs);

  /// Measures rung 0, and stores its samples per second in `level_`.
  virtual void measure_start() = 0;
  /// Returns the reason why a technique does not apply to the last kept configuration; empty if it applies.
  virtual std::string obstacle(size_t rung) = 0;
  /// Measures a rung and sets its verdict.
  virtual void measure_rung(size_t rung) = 0;
  /// Called for a rung that is kept.
  virtual void keep(size_t rung) = 0;
  /// Compares rung 0 with the last kept rung. Called only if a rung was kept.
  virtual void measure_total() = 0;
  /// Completes the report after the last measurement.
  virtual void finish() = 0;

  RungResult& result_of(size_t rung) { return rung == 0 ? report_.plain : report_.rungs[rung - 1]; }
  /// Returns the results of a rung that are known before it is measured.
  /// Params: technique – a technique or a compared recipe
  template <class AnyTechnique>
  static RungResult rung_of(const AnyTechnique& technique) {
    RungResult result;
    result.technique = technique.name;
    result.title = technique.title;
    result.note = "the ladder ended before it measured this technique";
    result.expectation = technique.expected.words;
    result.expected_speed = expected_effect(technique.expected.time_factor);
    result.expected_memory = expected_effect(technique.expected.memory_factor);
    return result;
  }
  /// Computes speedup, samples per second and time of a step from windows of the rung and the previous configuration.
  /// Params: step_samples – number of samples of the mean step
  void fill_from_windows(const TimedWindows& windows, double step_samples, RungResult& result) const;
  /// Reports progress of the rung that is being measured.
  void show(const MeasureProgress& progress);

  const LadderOptions options_;
  LadderMeasure measure_;
  LadderReport report_;
  size_t kept_rung_ = 0;     ///< the last kept rung; 0: rung 0
  size_t now_ = 0;           ///< the rung in progress
  RatioInterval level_;      ///< samples per second of rung 0
  double step_samples_ = 0;  ///< of the windows in progress
  /// Samples per second of the last kept configuration relative to rung 0.
  RatioInterval over_start_{.ratio = 1, .low = 1, .high = 1};

 private:
  void climb(double start);
  void measure_or_fail(size_t rung);
  void announce(const RungResult& result);

  OnEvent on_event_;
};

}  // namespace bellows::train
