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

/// Pairs of a name and a number.
using NamedValues = std::vector<std::pair<std::string, double>>;

/// Splits a list of log formats such as "csv, json".
/// Throws: c10::ValueError if a format is not csv, json or tensorboard (the message suggests the nearest name) or
///         occurs twice
std::vector<std::string> parse_log_kinds(std::string_view text);

/// The log files in a run's folder:
/// - csv: `log.csv` with one row per step. The columns are step, seconds since the start of the run, time of day (UTC),
///   and one column per name, in order of first use. A new name adds a column. The seconds continue after a resume.
/// - json: `log.jsonl` with the same data, one object per line. NaN and infinity become null.
/// - tensorboard: event files.
/// All values of a step share one row. A resumed run first deletes the rows after the step of its checkpoint. If a file
/// cannot be written, for example because the disk is full, a warning is logged once and this log ends. The run
/// continues.
/// Cost:    one system call per row and file
/// Threads: not thread-safe
class RunLog {
 public:
  /// Params: kinds     – see parse_log_kinds(). If empty, nothing is logged
  ///         folder    – is created if it is missing. If empty, nothing is logged
  ///         last_step – step of the checkpoint from which the run resumes; rows up to this step are kept. If negative,
  ///                     the run is new and replaces old logs
  /// Throws: c10::ValueError if `kinds` is invalid, or if the folder contains a file that has the name of a log but
  ///         other content. c10::Error if a file cannot be written
  RunLog(std::string_view kinds, const std::string& folder, int64_t last_step = -1);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Returns false if nothing is logged. Callers then need not compute values.
  explicit operator bool() const { return state_ != nullptr; }

  /// Logs values of a step.
  /// Params: step   – number of steps so far; must not decrease
  ///         values – names must not be step, seconds or time
  /// Throws: c10::ValueError if an argument is invalid
  void step(int64_t step, const NamedValues& values);
  /// Logs epoch, train_loss, train_accuracy, eval_loss, eval_accuracy, train_seconds and eval_seconds of the record at
  /// the epoch's last step. Values that were not measured are omitted.
  void epoch(const EpochRecord& record);

  // Only TensorBoard supports the following calls. The other logs ignore them.

  /// Logs a text.
  /// Params: text – Markdown
  void text(std::string_view name, std::string_view text, int64_t step);
  /// Logs an image, see io::EventWriter::image().
  void image(std::string_view name, const at::Tensor& image, int64_t step);
  void histogram(std::string_view name, const at::Tensor& values, int64_t step);
  /// Logs a histogram of each parameter, and of each defined gradient as "<name>.grad".
  void histograms(const Model& model, int64_t step);
  /// Writes the run's row in the HPARAMS tab. Call this function at the end of the run.
  /// Params: metrics – final results, also written as scalars "final/<name>" at `step`
  void hyperparameters(const Recipe& recipe, const NamedValues& metrics, int64_t step);

  /// Writes buffered data of all files to the operating system. Call this function before you save a checkpoint of the
  /// same step.
  void flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
