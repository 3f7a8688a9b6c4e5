#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

struct EpochRecord;

/// Numbers by name.
using NamedValues = std::vector<std::pair<std::string, double>>;

/// Splits "csv, json" into a list of log formats.
/// Throws: c10::ValueError if a format is unknown (the message suggests the nearest of csv, json, tensorboard) or
///         occurs twice
std::vector<std::string> parse_log_kinds(std::string_view text);

/// The log files in a run's folder:
/// - csv: `log.csv` with one row per step: step, seconds since the start of the run (monotonic, continued after a
///   resume), time of day, then a column for each name in order of appearance. A new name adds a column.
/// - json: `log.jsonl` with the same data as one object per line; NaN and infinity become null.
/// - tensorboard: event files.
/// Each step occurs once: all values of a step share its row. A resume first deletes the rows after its step. If a file
/// cannot be written (disk full), a warning is logged once and that log ends; the run continues.
/// Cost:    one system call per row and file
/// Threads: not thread-safe
class RunLog {
 public:
  /// Params: kinds     – see parse_log_kinds(); empty: all calls do nothing
  ///         folder    – created if it is missing; empty: all calls do nothing
  ///         last_step – step of the checkpoint from which the run resumes: earlier rows stay. Negative: a new run,
  ///                     which replaces old logs
  /// Throws: c10::ValueError if `kinds` is invalid, or a file of such a name is not a log of a run. c10::Error if a
  ///         file cannot be written
  RunLog(std::string_view kinds, const std::string& folder, int64_t last_step = -1);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// False if nothing is written, so that callers need not compute values.
  explicit operator bool() const { return state_ != nullptr; }

  /// Params: step – number of steps so far; must not decrease
  ///         values – names other than step, seconds and time
  /// Throws: c10::ValueError if an argument is invalid
  void step(int64_t step, const NamedValues& values);
  /// Logs the record's epoch, train_loss, train_accuracy, eval_loss, eval_accuracy, train_seconds and eval_seconds at
  /// the epoch's last step. Values that were not measured are omitted.
  void epoch(const EpochRecord& record);

  // Only TensorBoard supports the following; the other logs ignore them.

  /// Params: text – Markdown
  void text(std::string_view name, std::string_view text, int64_t step);
  /// Like io::EventWriter::image().
  void image(std::string_view name, const at::Tensor& image, int64_t step);
  void histogram(std::string_view name, const at::Tensor& values, int64_t step);
  /// Logs each parameter, and each defined gradient as "<name>.grad".
  void histograms(const Model& model, int64_t step);
  /// Writes the run's row in the HPARAMS tab. Call it at the end of the run.
  /// Params: metrics – final results, written as scalars "final/<name>" at `step`
  void hyperparameters(const Recipe& recipe, const NamedValues& metrics, int64_t step);

  /// Flushes all files to the operating system. Call it before a checkpoint of the same step.
  void flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
