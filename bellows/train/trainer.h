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

/// Results of one epoch.
struct EpochRecord {
  int64_t epoch = 0;
  int64_t steps = 0;                                                 ///< since the start of the run
  double train_loss = 0;                                             ///< mean over the epoch's steps
  double train_accuracy = std::numeric_limits<double>::quiet_NaN();  ///< over the epoch's steps; NaN if not measured
  double eval_loss = 0;                                              ///< 0 if there is no evaluation data
  double eval_accuracy = 0;  ///< 0 if there is no evaluation data; NaN if the task predicts numbers
  double train_seconds = 0;  ///< without evaluation and saving
  double eval_seconds = 0;
  std::vector<std::pair<std::string, double>> eval_metrics{};  ///< metrics of the task, by name
};

/// The result of fit().
struct FitResult {
  std::vector<EpochRecord> history;  ///< all epochs, including those before a resume
  int64_t steps = 0;
  std::optional<Evaluation> evaluation;  ///< the last evaluation, which may have been within an epoch
  int64_t skipped_steps = 0;             ///< number of steps that `on_nan: skip` skipped
  bool stopped = false;                  ///< request_stop() ended the fit
  bool stopped_early = false;            ///< `early_stopping_patience` ended the fit
  bool reached_target = false;
  double time_to_target_s = -1;  ///< training time until target_accuracy was reached; negative if it was not reached
  double train_seconds = 0;      ///< total, without evaluation and saving
  std::string checkpoint;        ///< path of the last checkpoint; empty if there is none
};

/// Callbacks during fit(). They run on the thread of fit(). Unused callbacks may stay empty.
struct Callbacks {
  std::function<void(const TrainLoop& loop)> on_step;       ///< after each step, before gradients are cleared
  std::function<void(const EpochRecord& record)> on_epoch;  ///< after each epoch and its evaluation
  std::function<void(int64_t step, const Evaluation& evaluation)> on_evaluation;
  /// Called every `logging_steps` steps, when the loss is logged. Use it to log your own numbers, images or texts for
  /// the same step.
  std::function<void(RunLog& log, const TrainLoop& loop)> on_log;
  /// Called when saving a checkpoint starts. Unless the recipe turns this off, the checkpoint is written in the
  /// background.
  std::function<void(const std::string& path)> on_checkpoint;
  /// Called when this process has joined other ranks: at the start, or because a rank was lost or replaced
  /// (set_elastic_world()).
  std::function<void(const comm::World& world)> on_ranks;
};

/// Trains a model. fit() also evaluates the model, shows progress, and writes logs and checkpoints. It can resume a
/// run, and stop early or on request. All output files are in the recipe's run_folder: checkpoints, `best/`, logs,
/// traces, and run.json, which describes how the run was created.
/// Numerics: a run that was stopped or killed at any time and then resumed is bit-identical to an uninterrupted run
///           (tests/train/resume_test.cpp, kill_test.cpp)
/// Threads:  one fit at a time; request_stop() may be called from any thread
class Trainer {
 public:
  /// Throws: c10::ValueError if a value of the recipe is out of range
  explicit Trainer(Recipe recipe, Callbacks callbacks = {});

  /// Trains a job that is created from the recipe.
  FitResult fit();
  /// Trains the caller's objects. Batch size, order and threads are those of `train_data`. The recipe's learning rate
  /// and optimizer are not used. Its warm-up and schedule scale the learning rates of `optimizer`.
  /// Params: loss_fn – forward pass and loss of one batch; runs with the recipe's precision
  /// Throws: c10::ValueError if the device or data cannot be used. c10::Error if a loss is NaN or infinite, or a
  ///         checkpoint cannot be written
  FitResult fit(const Model& model, torch::optim::Optimizer& optimizer, LossFn loss_fn, data::Dataset train_data,
                std::optional<data::Dataset> eval_data = {});
  /// Trains the caller's job. If it has several optimizers, all of them step in each training step.
  FitResult fit(Job job);

  /// Makes fit() resume from the newest undamaged checkpoint in the recipe's folder. If there is no checkpoint, fit()
  /// starts from the beginning. Without resume, fit() throws if the folder contains checkpoints.
  void resume(bool on = true) { resume_ = on; }
  /// Allows fit() to resume even if changes of recipe, data, libtorch, processor or threads make results differ from
  /// the original run. If this is off, fit() throws an error that lists the changes.
  void accept_changes(bool on = true) { accept_changes_ = on; }

  /// Trains on several ranks (comm/world.h). Each rank must make the same calls. The ranks divide each batch and shard
  /// the state according to `data_parallel`. All ranks write each checkpoint together. Rank 0 writes logs and progress.
  void set_process_group(comm::Group ranks) { ranks_ = std::move(ranks); }
  /// Like set_process_group(), but the run continues when ranks are lost (`bellows launch --replace-lost`). The other
  /// ranks repeat the step of the loss, whose samples are divided among them. A new rank gets its part of the state from
  /// them. Each step therefore uses all samples of its batch exactly once. With sharded state, the ranks of incomplete
  /// replicas wait until they are complete again. If the process has not joined the world yet, fit() joins it after it
  /// has read the data.
  /// Cost:   with sharded state, memory for a second copy of each rank's part of the weights and of the optimizer state
  /// Throws: fit() throws c10::ValueError if the recipe does not support it, for example because of its data_parallel
  void set_elastic_world(std::shared_ptr<comm::ElasticWorld> world) {
    elastic_ = std::move(world);
    has_state_ = false;
  }

  /// Computes loss, accuracy and metrics of the model.
  /// Params: task – by default, one class per sample in `batch["label"]`
  Evaluation evaluate(const Model& model, const data::Dataset& data, const Task& task = {}) const;

  /// Ends fit() after the current step. fit() then saves a checkpoint and returns with `stopped`. You may call this
  /// function from a signal handler.
  void request_stop() noexcept { stop_ = true; }
  /// True while fit() runs steps, but not while it opens data. You may call this function from a signal handler.
  bool in_steps() const noexcept { return in_steps_; }

  const Recipe& recipe() const { return recipe_; }

 private:
  void join_world(Job& job);

  Recipe recipe_;
  Callbacks callbacks_;
  std::optional<comm::Group> ranks_;
  std::shared_ptr<comm::ElasticWorld> elastic_;
  bool resume_ = false, accept_changes_ = false;
  bool has_state_ = false;  ///< an earlier fit() of elastic_ got the state of the job
  std::atomic<bool> stop_ = false, in_steps_ = false;
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace bellows::train
