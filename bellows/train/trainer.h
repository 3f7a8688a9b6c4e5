#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bellows/train/job.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::train {

class RunLog;

/// One epoch of a run.
struct EpochRecord {
  int64_t epoch = 0;
  int64_t steps = 0;                                                 ///< taken since the run began
  double train_loss = 0;                                             ///< mean over the epoch's steps
  double train_accuracy = std::numeric_limits<double>::quiet_NaN();  ///< over the epoch's steps; NaN: not measured
  double eval_loss = 0;                                              ///< 0 without evaluation data
  double eval_accuracy = 0;                                          ///< 0 without evaluation data
  double train_seconds = 0;                                          ///< of this epoch, without evaluation and saving
  double eval_seconds = 0;
};

/// What a fit came to.
struct FitResult {
  std::vector<EpochRecord> history;  ///< all epochs, those before a resume included
  int64_t steps = 0;
  std::optional<Evaluation> evaluation;  ///< the last one; the target may be reached inside an epoch
  int64_t skipped_steps = 0;             ///< left out by `on_nan: skip`
  bool stopped = false;                  ///< request_stop() ended it
  bool stopped_early = false;            ///< `patience` ended it
  bool reached_target = false;
  double time_to_target_s = -1;  ///< training time until target_accuracy was seen; negative: never
  double train_seconds = 0;      ///< in all, without evaluation and saving
  std::string checkpoint;        ///< the last one written, or ""
};

/// Called while a fit runs, on its thread. Any may be empty.
struct Callbacks {
  std::function<void(const TrainLoop& loop)> on_step;       ///< after each step; gradients are still there
  std::function<void(const EpochRecord& record)> on_epoch;  ///< after each epoch and its evaluation
  std::function<void(int64_t step, const Evaluation& evaluation)> on_evaluation;
  /// When the loss is logged, every `log_every` steps: add numbers, images or texts of your own under the same step.
  std::function<void(RunLog& log, const TrainLoop& loop)> on_log;
  std::function<void(const std::string& path)> on_checkpoint;  ///< begun; in the background, unless the recipe says no
};

/// Trains: epochs, evaluation, progress, logs, checkpoints, resume, early stop, an orderly stop. All that it writes goes
/// into the recipe's run_folder: checkpoints, `best/`, run.json (what the run was made with), logs and traces.
/// Numerics: a run that was stopped, or killed at any moment, and resumed gives the same bits as one that was not
///           (tests/train/resume_test.cpp, kill_test.cpp)
/// Threads:  one fit at a time; request_stop() from anywhere
class Trainer {
 public:
  /// Throws: c10::ValueError – the recipe is out of range
  explicit Trainer(Recipe recipe, Callbacks callbacks = {});

  /// Trains a job made from the recipe alone.
  FitResult fit();
  /// Trains what the caller made. Batch size, order and threads are `train_data`'s own; the recipe's learning rate
  /// and optimizer are not used, its warm-up scales the optimizer's own rates.
  /// Params:   loss_fn – forward pass and loss of one batch; runs under the recipe's precision
  /// Throws:   c10::ValueError – device or data that cannot be used; c10::Error – a loss that is NaN or infinite, a
  ///           checkpoint that cannot be written
  FitResult fit(const Model& model, torch::optim::Optimizer& optimizer, LossFn loss_fn, data::Dataset train_data,
                std::optional<data::Dataset> eval_data = {});
  /// The same with several optimizers, which all step after each backward pass.
  FitResult fit(Job job);

  /// Go on from the newest whole checkpoint of the recipe's folder; from the start when there is none. Without it, a
  /// fit refuses a folder that holds checkpoints.
  void resume(bool on = true) { resume_ = on; }
  /// Go on even where recipe, data, libtorch, processor or threads differ from the checkpoint's so that the numbers will
  /// not be those of the run that was interrupted. Without it, such a resume is refused with a list of what differs.
  void accept_changes(bool on = true) { accept_changes_ = on; }

  /// Train together with the other ranks of a job (comm/world.h), each of which calls the same: a batch is shared by all,
  /// and so is what `data_parallel` says. Checkpoints are theirs together, logs and progress rank 0's.
  void with(comm::Group ranks) { ranks_ = std::move(ranks); }

  /// Loss and accuracy of `model(model_input(batch))` against `batch["label"]`.
  Evaluation evaluate(const Model& model, const data::Dataset& data) const;

  /// The fit ends after the step that is running, saves a checkpoint and returns with `stopped`. Safe in a signal
  /// handler.
  void request_stop() noexcept { stop_ = true; }
  /// True while fit() takes steps, not while it opens data. May be called from a signal handler.
  bool in_steps() const noexcept { return in_steps_; }

  const Recipe& recipe() const { return recipe_; }

 private:
  Recipe recipe_;
  Callbacks callbacks_;
  std::optional<comm::Group> ranks_;
  bool resume_ = false, accept_changes_ = false;
  std::atomic<bool> stop_ = false, in_steps_ = false;
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace bellows::train
