#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/data/loader/loader.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/nn/fast_random.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/gradient_accumulator.h"
#include "bellows/optim/step_in_backward.h"
#include "bellows/train/alternation.h"
#include "bellows/train/job.h"
#include "bellows/train/step/activations.h"
#include "bellows/train/step/compiled_parts.h"
#include "bellows/train/step/evaluation.h"
#include "bellows/train/step/growth.h"
#include "bellows/train/step/quantized_training.h"
#include "bellows/train/step/ranks.h"
#include "bellows/train/step/rates.h"
#include "bellows/train/step/replicas.h"
#include "bellows/train/step/reproducible_ranks.h"
#include "bellows/train/step/train_metrics.h"
#include "bellows/train/step/update.h"

namespace bellows::train {

/// Seconds per phase of the steps, measured on the host's clock. An accelerator may execute the work later. With
/// `compile: step`, the operators of a step run at its end and count as update. With `data_parallel: dp` or
/// a pipeline, forward counts as backward, because replicas and stages start backward on their own.
struct PhaseSeconds {
  double load = 0, forward = 0, backward = 0, update = 0;
};

/// Runs training steps for Trainer, ladder and benchmarks. A step runs forward and backward for each of
/// `gradient_accumulation_steps` batches, then one update. Two loops can alternate in one process.
/// Numerics: bit-identical to a hand-written libtorch loop if all techniques of the recipe are off
///           (tests/train/train_loop_test.cpp)
/// Threads:  not thread-safe
class TrainLoop {
 public:
  explicit TrainLoop(Job job);

  /// Runs one optimizer step. If the previous epoch has ended, the step starts the next epoch. The last step of an
  /// epoch uses the remaining batches. With several ranks, all ranks must call it together.
  /// Params:  stop – true if this rank requests a stop
  /// Returns: false if the epoch had no usable batch left. In this case no step ran, and the next call starts the next
  ///          epoch
  /// Throws:  exceptions from the loader, the model and the loss. c10::ValueError if an epoch has no usable batch.
  ///          Errors of `deterministic` and `require_seed` (operator_rules.h).
  ///          c10::Error if a loss or gradient is NaN or infinite; the message names the step, the samples and the
  ///          first operator that produced such a value. This check runs only on the CPU, with `on_nan: stop` and
  ///          without `compile: step`
  bool step(bool stop = false);
  /// Runs `n` steps. Calls of step() that return false do not count.
  void run_steps(int64_t n);

  /// Whether any rank requested a stop in the last step. The result is the same on all ranks.
  bool stop() const { return stop_; }
  /// False if the last step threw an exception after it had received a batch. Gradients and buffers are then
  /// inconsistent.
  bool between_steps() const { return between_steps_; }
  /// The ranks in this training job.
  Ranks& ranks() { return ranks_; }
  /// The replicas in this process.
  const Replicas& replicas() const { return replicas_; }
  /// Whether the compilations for the recipe's `compile` are complete, except for evaluation.
  bool is_compiled() const { return compiled_.ready(); }
  /// The methods that reduce activation memory in each step.
  const Activations& activations() const { return activations_; }
  int64_t step_count() const { return step_; }
  int64_t sample_count() const { return samples_; }
  /// Position of the next batch. After the last batch of epoch 0, the position is epoch 1, batch 0.
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  /// Number of steps in the epoch of the next step.
  int64_t steps_per_epoch() const { return growth_.steps(epoch_); }
  /// Number of steps in all epochs of the recipe.
  int64_t total_steps() const { return growth_.total_steps(job_.recipe.epochs); }
  /// Batch size in the epoch of the next step. The last batch of an epoch may be smaller.
  int64_t batch_size() const { return growth_.batch_size(epoch_); }
  int64_t skipped_samples() const { return skipped_ + (started_ ? loader_.skipped() : 0); }
  /// Number of steps that `on_nan: skip` skipped. Waits for the device.
  int64_t skipped_steps() const { return update_.skipped(); }
  /// Number of samples in the last step.
  int64_t last_batch_size() const { return last_batch_size_; }
  const std::vector<int64_t>& last_ids() const { return last_ids_; }
  const PhaseSeconds& phase_seconds() const { return phases_; }
  /// Report on the loading of training data. During batch-size warm-up, it covers the time since the last change of the
  /// batch size.
  data::LoaderReport loader_report() const { return loader_.report(); }
  /// Share of this epoch's time that steps spent waiting for batches.
  double wait_share() const { return loader_.wait_share(); }
  /// Records the loader's work from now on. If `writer` is null, the recording ends.
  void trace_loader(std::shared_ptr<TraceWriter> writer) { loader_.trace(std::move(writer)); }

  /// Returns the losses of the steps since the last call, in order. With `on_nan: skip`, it returns only finite losses.
  /// Losses stay on an accelerator until this call. The call waits for the device.
  /// Throws: c10::Error if a loss is NaN or infinite (the message has the step and the learning rate)
  std::vector<double> take_losses();

  /// Returns the share of correctly classified training samples since the last call. The result is NaN if the recipe's
  /// train_metrics is none or the loss function returns no predictions. Waits for the device.
  double take_accuracy() { return metrics_.take_accuracy(ranks_.data_group()); }

  /// Returns the loss of the last step, on its device. The tensor is undefined before the first step.
  const at::Tensor& last_loss() const { return last_loss_; }
  /// Returns the norm of the last step's gradients before clipping. The tensor is undefined if no norm was computed.
  const at::Tensor& last_grad_norm() const { return update_.grad_norm(); }

  /// Evaluates the model on the job's held-out data, with the averaged weights if there are any. The evaluation has no
  /// effect on training, except with `lr_schedule: plateau`.
  /// Throws: c10::ValueError if there is no held-out data
  Evaluation evaluate();

  /// Returns the state of model, optimizers, generators, averages and data position. After restore(), training
  /// continues bit-identically.
  checkpoint::State state() const;
  /// Returns the part of the state that this rank holds, for checkpoints that all ranks write together. Collective.
  checkpoint::ShardedState sharded_state() const;
  /// Returns the state that this rank holds: with shards, its part of the model and of the optimizer state, in the form of
  /// a rank with the same part. Calls no other rank.
  checkpoint::State own_state() const;
  /// Restores a state.
  /// Params: own_options – keep the job's learning rates and other options instead of those in the state. Parts that
  ///                       the state lacks, such as average and loss scale, then keep their initial values
  ///         own – whether the state is the result of own_state(), on this rank or on a rank with the same part
  void restore(const checkpoint::State& state, bool own_options = false, bool own = false);

  /// After an exception in step(): restores buffers and data position, so that the step can be repeated. Weights do not
  /// change before the ranks have exchanged all gradients.
  void undo_step();
  /// If ranks can be lost and the state is sharded: a copy of own_state() before the update of the last step, because
  /// ranks that were lost may have made this update, and others not. The copy has no generators.
  const std::optional<checkpoint::State>& state_before_update() const { return before_update_; }
  /// Whether an exception ended an update of sharded state. The state of this rank may then be incomplete.
  bool update_failed() const { return updating_; }
  /// Whether the ranks agreed in the last step to join another world. The result is the same on all ranks.
  bool rejoin() const { return rejoin_; }
  /// Returns the job, for another loop. Afterwards, only destroy this loop.
  Job take_job();

  const Job& job() const { return job_; }
  /// Returns the loop of `Job::alternate`, or null.
  const TrainLoop* alternate() const { return alternate_.get(); }
  /// Returns the difficulty statistics of each sample, or null if sample_stats is off.
  data::SampleStats* sample_stats() { return sample_stats_ ? &*sample_stats_ : nullptr; }
  /// Returns the moving average of the weights, or null if ema_decay is 0.
  const optim::AveragedModel* average() const { return average_ ? &*average_ : nullptr; }

 private:
  std::optional<data::Batch> next_batch();
  void take_step(data::Batch first, bool stop);
  void forward_backward(const data::Batch& batch, int64_t number, GroupMean& mean, bool alone, bool last);
  void run_stages(const data::Batch& batch, int64_t number, GroupMean& mean, bool last);
  void run_replicas(const data::Batch& batch, int64_t number, GroupMean& mean, bool alone);
  void note_output(const data::Batch& batch, const StepOutput& output);
  void note_samples(const data::Batch& batch, const at::Tensor& predictions);
  void replay(const data::Batch& batch);
  std::string cause_of_bad_value(const data::Batch& batch);
  bool looks_at_once() const;
  void check_finite(const at::Tensor& loss, const data::Batch& batch);
  bool has_bad_gradient() const;
  void check_gradient(const data::Batch& batch);
  checkpoint::Parts average_parts() const;
  void restore_average(const NamedTensors& extra);
  std::vector<at::Tensor> step_buffers() const;
  void keep_buffers();
  void put_back_buffers(const at::Tensor& loss);
  void keep_state();
  void restore_own_weights(const checkpoint::State& state);
  void take_gradients();
  int64_t batches_per_step() const;
  NamedTensors optimizer_state() const;
  NamedTensors extra_state(const comm::Group* ranks) const;
  void restore_optimizers(const NamedTensors& state, bool own_options, bool own_part);
  static std::unique_ptr<TrainLoop> make_alternate(const Job& job);
  std::vector<std::shared_ptr<torch::optim::Optimizer>> all_optimizers() const;
  std::vector<at::Tensor> alternate_parameters() const;
  void step_alternate();
  NamedTensors alternate_state() const;
  void restore_progress(const NamedTensors& extra, bool own_options);
  void restore_exchange(const NamedTensors& extra, bool own_options);
  void restore_alternate(const NamedTensors& state, bool own_options);

  Job job_;
  std::unique_ptr<TrainLoop> alternate_;    ///< of Job::alternate
  std::optional<FrozenParameters> frozen_;  ///< those of the alternate loop, during the construction of this loop
  Ranks ranks_;                             ///< modifies the job
  c10::Device device_;
  ReproducibleRanks reproducible_;  ///< modifies the job
  Replicas replicas_;               ///< modifies the job
  Growth growth_;
  data::Loader loader_;
  std::optional<data::Loader> eval_loader_;
  amp::Policy policy_;
  nn::FastRandomGuard fast_random_;
  Activations activations_;
  QuantizedTraining quantized_;  ///< may add an optimizer to the job
  CompiledParts compiled_;
  Update update_;
  Rates rates_;
  std::optional<optim::AveragedModel> average_;
  std::optional<optim::GradientAccumulator> sums_;
  std::vector<std::unique_ptr<optim::StepInBackward>> stepping_;  ///< one per optimizer, or none
  std::vector<at::Tensor> losses_, kept_buffers_;
  TrainMetrics metrics_;
  mutable std::optional<data::SampleStats> sample_stats_;  // mutable: reading it transfers pending data from the device
  PhaseSeconds phases_;
  at::Tensor last_loss_;
  std::vector<int64_t> last_ids_;
  int64_t step_ = 0, samples_ = 0, skipped_ = 0, last_batch_size_ = 0;
  int64_t epoch_ = 0, batch_ = 0;
  std::pair<int64_t, int64_t> before_step_;  ///< epoch_ and batch_ before the last step
  NamedTensors kept_counts_;                 ///< of metrics_ before the last step
  std::optional<checkpoint::State> before_update_;
  bool updating_ = false;
  bool stop_ = false, rejoin_ = false, between_steps_ = true;
  bool started_ = false;    ///< the loader is at (epoch_, batch_)
  bool delivered_ = false;  ///< the loader has returned a batch in this epoch
};

}  // namespace bellows::train
