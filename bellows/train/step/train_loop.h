#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/data/loader/loader.h"
#include "bellows/data/select/sample_stats.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/gradient_accumulator.h"
#include "bellows/optim/step_in_backward.h"
#include "bellows/train/job.h"
#include "bellows/train/step/activations.h"
#include "bellows/train/step/compiled_parts.h"
#include "bellows/train/step/growth.h"
#include "bellows/train/step/ranks.h"
#include "bellows/train/step/rates.h"
#include "bellows/train/step/train_metrics.h"
#include "bellows/train/step/update.h"

namespace bellows::train {

/// What evaluation found.
struct Evaluation {
  double loss = 0;      ///< mean cross-entropy a sample, or a token: its exponential is the perplexity
  double accuracy = 0;  ///< share of samples whose largest logit is the label's, or of tokens that were told right
  int64_t samples = 0;  ///< or tokens, of models of the next token
  double seconds = 0;
};

/// Loss and accuracy of `model(model_input(batch))` against `batch["label"]`, or of packed texts against the next tokens,
/// over one epoch of `loader`: in eval mode, without gradients, in the recipe's precision. The model's mode is put back;
/// nothing else changes.
/// Params: ranks – each of which has a share of the data in its loader; null: all of it is here
///         compiled – runs the forward passes; null: they run plainly
Evaluation evaluate(const Model& model, data::Loader& loader, const Recipe& recipe, const comm::Group* ranks = nullptr,
                    CompiledParts* compiled = nullptr);

/// Where the time of the steps went, on the host's clock: on an accelerator the work itself may be done later. With `compile: step` a step's operators
/// run at its end, and count as its update.
struct PhaseSeconds {
  double load = 0, forward = 0, backward = 0, update = 0;
};

/// The step engine: `accumulate` batches, forward and backward each, one update, again and again. The Trainer, the
/// ladder and benchmarks all drive this one. Two loops can take turns in one process.
/// Numerics: with all switches of the recipe off, bit for bit the loop that one writes by hand over libtorch
///           (tests/train/train_loop_test.cpp)
/// Threads:  one owner
class TrainLoop {
 public:
  explicit TrainLoop(Job job);

  /// One optimizer step. Goes on with the next epoch when one is over; the last step of an epoch takes the batches that
  /// are left.
  /// Returns: false when the epoch had no usable batch left: nothing was done, and the next epoch comes next
  /// Several ranks call it together; `stop` says that this one wants to end.
  /// Throws: what the loader, the model or the loss throws; c10::ValueError – no batch in a whole epoch; c10::Error – on
  ///         the CPU with `on_nan: stop` and not `compile: step`, a loss or gradient that is NaN or infinite: step, samples, first operator
  bool step(bool stop = false);
  /// So many steps that did something.
  void run_steps(int64_t n);

  /// Some rank wanted to end in the last step: the same on all.
  bool stop() const { return stop_; }
  /// False after a step that threw once it had a batch: gradients and buffers are then not those of any step.
  bool between_steps() const { return between_steps_; }
  /// Who take the steps together.
  Ranks& ranks() { return ranks_; }
  /// Nothing of the recipe's `compile` is being made in the background any more.
  bool is_compiled() const { return compiled_.ready(); }
  /// What a step does to hold fewer activations.
  const Activations& activations() const { return activations_; }
  int64_t step_count() const { return step_; }
  int64_t sample_count() const { return samples_; }
  /// Where the data goes on: after the last batch of epoch 0 this is epoch 1, batch 0.
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  /// Of the epoch that the next step belongs to.
  int64_t steps_per_epoch() const { return growth_.steps(epoch_); }
  /// Of that epoch; the last batch of an epoch may be smaller.
  int64_t batch_size() const { return growth_.batch_size(epoch_); }
  int64_t skipped_samples() const { return skipped_ + (started_ ? loader_.skipped() : 0); }
  /// Steps that `on_nan: skip` left out. Waits for the device.
  int64_t skipped_steps() const { return update_.skipped(); }
  /// Samples of the last step.
  int64_t last_batch_size() const { return last_batch_size_; }
  const std::vector<int64_t>& last_ids() const { return last_ids_; }
  const PhaseSeconds& phase_seconds() const { return phases_; }
  /// Of the training data; where batches grow, of those of the present size.
  data::LoaderReport loader_report() const { return loader_.report(); }
  /// Share of this epoch's time in which a step waited for its batch.
  double wait_share() const { return loader_.wait_share(); }
  /// Draws what the loader does from now on; null ends that.
  void trace_loader(std::shared_ptr<TraceWriter> writer) { loader_.trace(std::move(writer)); }

  /// The losses of the steps since the last call, oldest first; with `on_nan: skip` those that are finite. Only here
  /// does the loop wait for an accelerator.
  /// Throws: c10::Error – a loss that is NaN or infinite: step, epoch, batch
  std::vector<double> take_losses();

  /// Share of the training samples that were classified right since the last call; NaN when it is not measured: the
  /// recipe's train_metrics is none, or the loss function gives no predictions. Waits for the device.
  double take_accuracy() { return metrics_.take_accuracy(ranks_.group()); }

  /// The last step's loss, still on its device. Undefined before the first step.
  const at::Tensor& last_loss() const { return last_loss_; }
  /// The norm of the last step's gradients before they were clipped; undefined when clipping did not need it.
  const at::Tensor& last_grad_norm() const { return update_.grad_norm(); }

  /// Over the job's evaluation data, with the averaged weights where there are any. Training goes on as if it had not
  /// been asked for; only the schedule `plateau` takes note.
  /// Throws: c10::ValueError – there is no evaluation data
  Evaluation evaluate();

  /// Model, optimizers, generators, averages and position. `restore` goes on from there with the same bits.
  checkpoint::State state() const;
  /// As this rank holds it, for checkpoints that all ranks write together. Collective.
  checkpoint::ShardedState sharded_state() const;
  /// Params: own_options – learning rates and the other options stay the job's instead of the state's, and a part that
  ///         the state lacks (average, loss scale) begins anew
  void restore(const checkpoint::State& state, bool own_options = false);

  const Job& job() const { return job_; }
  /// How hard each sample was so far; null without sample_stats.
  data::SampleStats* sample_stats() { return sample_stats_ ? &*sample_stats_ : nullptr; }
  /// The moving average of the weights; null without ema_decay.
  const optim::AveragedModel* average() const { return average_ ? &*average_ : nullptr; }

 private:
  std::optional<data::Batch> next_batch();
  void take_step(data::Batch first, bool stop);
  void forward_backward(const data::Batch& batch, int64_t number, GroupMean& mean, bool alone, bool last);
  void note_samples(const data::Batch& batch, const at::Tensor& predictions);
  void replay(const data::Batch& batch);
  bool looks_at_once() const;
  void check_finite(const at::Tensor& loss, const data::Batch& batch);
  void check_gradient(const data::Batch& batch);
  void keep_buffers();
  void put_back_buffers(const at::Tensor& loss);
  void take_gradients();
  NamedTensors optimizer_state() const;
  NamedTensors extra_state(const comm::Group* ranks) const;
  void restore_optimizers(const NamedTensors& state, bool own_options);

  Job job_;
  Ranks ranks_;  ///< changes the job
  c10::Device device_;
  Growth growth_;
  data::Loader loader_;
  std::optional<data::Loader> eval_loader_;
  amp::Policy policy_;
  Activations activations_;
  CompiledParts compiled_;
  Update update_;
  Rates rates_;
  std::optional<optim::AveragedModel> average_;
  std::optional<optim::GradientAccumulator> sums_;
  std::vector<std::unique_ptr<optim::StepInBackward>> stepping_;  ///< one for each optimizer, or none
  std::vector<at::Tensor> losses_, kept_buffers_;
  TrainMetrics metrics_;
  mutable std::optional<data::SampleStats> sample_stats_;  // reading it moves what waits on the device
  PhaseSeconds phases_;
  at::Tensor last_loss_;
  std::vector<int64_t> last_ids_;
  int64_t step_ = 0, samples_ = 0, skipped_ = 0, last_batch_size_ = 0;
  int64_t epoch_ = 0, batch_ = 0;
  bool stop_ = false, between_steps_ = true;
  bool started_ = false;    ///< the loader stands at (epoch_, batch_)
  bool delivered_ = false;  ///< it gave a batch in this epoch
};

}  // namespace bellows::train
