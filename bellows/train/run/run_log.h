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

/// "csv, json" as a list of what is written.
/// Throws: c10::ValueError – something else than csv, json, tensorboard (with the nearest), or one of them twice
std::vector<std::string> parse_log_kinds(std::string_view text);

/// What a run writes down as it goes, in its folder:
/// - csv: `log.csv`, a row a step: step, seconds since the run's start (steady, going on after a resume), the time of
///   day, then a column for each name, in the order of appearance. A new name adds a column.
/// - json: `log.jsonl`, the same as an object a line; what is NaN or infinite is null.
/// - tensorboard: event files.
/// No step stands twice: values of one step, however many calls bring them, share its row; a resume first cuts what
/// stands behind its step. A file that cannot be written any more (disk full) is said once and given up; the run goes
/// on.
/// Cost:    a call of the system a row and file
/// Threads: one owner
class RunLog {
 public:
  /// Params: kinds     – as parse_log_kinds(); empty: every call does nothing
  ///         folder    – made when it is missing; empty: every call does nothing
  ///         last_step – of the checkpoint that the run goes on from: rows up to it stay. Negative: a new run, earlier
  ///                     logs are replaced
  /// Throws: c10::ValueError – kinds; a file of such a name is no log of a run; c10::Error – cannot be written
  RunLog(std::string_view kinds, const std::string& folder, int64_t last_step = -1);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// False when nothing is written: what a call would be given need not be computed.
  explicit operator bool() const { return state_ != nullptr; }

  /// Params: step – how many were taken, never less than in the call before
  ///         values – names other than step, seconds and time
  /// Throws: c10::ValueError – otherwise
  void step(int64_t step, const NamedValues& values);
  /// The record's epoch, train_loss, train_accuracy, eval_loss, eval_accuracy, train_seconds and eval_seconds at the
  /// epoch's last step; what was not measured is left out.
  void epoch(const EpochRecord& record);

  // Only TensorBoard can show these; the other logs pass over them.

  /// Params: text – Markdown
  void text(std::string_view name, std::string_view text, int64_t step);
  /// As io::EventWriter::image().
  void image(std::string_view name, const at::Tensor& image, int64_t step);
  void histogram(std::string_view name, const at::Tensor& values, int64_t step);
  /// Each parameter, and each gradient that is there as "<name>.grad".
  void histograms(const Model& model, int64_t step);
  /// The run's row in the HPARAMS tab; call it when the run ends.
  /// Params: metrics – what it came to; written as scalars "final/<name>" at `step`
  void hyperparameters(const Recipe& recipe, const NamedValues& metrics, int64_t step);

  /// All that was given stands in the files' system buffers: call it before a checkpoint of the same step.
  void flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::train
