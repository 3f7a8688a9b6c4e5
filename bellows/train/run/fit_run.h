#pragma once

#include <limits>
#include <optional>

#include "bellows/core/progress.h"
#include "bellows/train/run/run_folder.h"
#include "bellows/train/run/run_log.h"
#include "bellows/train/run/run_record.h"
#include "bellows/train/run/step_trace.h"
#include "bellows/train/trainer.h"

namespace bellows::train {

/// One fit of a Trainer, from its first step, or its last checkpoint, to its end.
class FitRun {
 public:
  FitRun(Job job, const Callbacks& callbacks, const std::atomic<bool>& stop);

  void begin(bool resume, bool accept_changes);
  FitResult go();

 private:
  bool done() const;
  bool stopped();
  bool is_first();
  void say_cut_texts();
  void run_epochs();
  void train_epoch();
  void take_step();
  void finish_epoch();
  void read_losses();
  void log_step();
  void evaluate();
  void note(const Evaluation& evaluation);
  void save();
  void save_sample_stats();
  RunFolder::Notes notes() const;
  void restore(const checkpoint::State& state, bool own_options);
  std::vector<double> numbers() const;
  void restore_numbers(const std::vector<double>& values);

  TrainLoop loop_;
  const Recipe& recipe_;
  const Callbacks& callbacks_;
  const std::atomic<bool>& stop_;
  std::optional<RunFolder> folder_;
  std::optional<RunLog> log_;
  std::optional<StepTrace> trace_;
  RunRecord record_;
  FitResult result_;
  int64_t epoch_ = 0;  ///< the one whose record is in progress; the loop may already stand at the next one's start
  std::vector<double> losses_;  ///< of its steps so far
  double recent_loss_ = 0;      ///< mean of those that were read last
  double epoch_seconds_ = 0;    ///< of its steps so far
  double epoch_eval_seconds_ = 0;
  Evaluation last_evaluation_;
  int64_t evaluated_step_ = -1, saved_step_ = -1;
  double best_loss_ = std::numeric_limits<double>::infinity();  ///< of all evaluations
  bool said_cut_texts_ = false;
  int64_t not_better_ = 0;  ///< evaluations since then
};

}  // namespace bellows::train
