#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bellows/amp/grad_scaler.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/data/loader.h"
#include "bellows/optim/schedule.h"
#include "bellows/train/job.h"
#include "bellows/train/train_metrics.h"

namespace bellows::train {

/// What evaluation found.
struct Evaluation {
  double loss = 0;      ///< mean cross-entropy a sample
  double accuracy = 0;  ///< share of samples whose largest logit is the label's
  int64_t samples = 0;
  double seconds = 0;
};

/// Loss and accuracy of `model(batch["image"])` against `batch["label"]` over one epoch of `loader`: in eval mode,
/// without gradients, in the recipe's precision. The model's mode is put back; nothing else changes.
Evaluation evaluate(const Model& model, data::Loader& loader, const Recipe& recipe);

/// The step engine: one batch, forward, backward, optimizer, again and again. The Trainer, the ladder and benchmarks
/// all drive this one. Two loops can take turns in one process.
/// Numerics: with all switches of the recipe off, bit for bit the loop that one writes by hand over libtorch
///           (tests/train/train_loop_test.cpp)
/// Threads:  one owner
class TrainLoop {
 public:
  explicit TrainLoop(Job job);

  /// One step. Goes on with the next epoch when one is over.
  /// Throws: what the loader, the model or the loss throws; c10::ValueError – no batch in a whole epoch
  void step();
  void run_steps(int64_t n);

  int64_t step_count() const { return step_; }
  int64_t sample_count() const { return samples_; }
  /// Where the data goes on: after the last batch of epoch 0 this is epoch 1, batch 0.
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  int64_t steps_per_epoch() const { return loader_.batches_per_epoch(); }
  int64_t skipped_samples() const { return skipped_ + (started_ ? loader_.skipped() : 0); }
  /// Samples in the batch of the last step.
  int64_t last_batch_size() const { return last_batch_size_; }

  /// The losses of the steps since the last call, oldest first. Only here does the loop wait for the device.
  /// Throws: c10::Error – a loss that is NaN or infinite: step, epoch, batch
  std::vector<double> take_losses();

  /// Share of the training samples that were classified right since the last call; NaN when it is not measured: the
  /// recipe's train_metrics is none, or the loss function gives no predictions. Waits for the device.
  double take_accuracy() { return metrics_.take_accuracy(); }

  /// The last step's loss, still on its device. Undefined before the first step.
  const at::Tensor& last_loss() const { return last_loss_; }

  /// Over the job's evaluation data. Training goes on as if it had not been asked for.
  /// Throws: c10::ValueError – there is no evaluation data
  Evaluation evaluate();

  /// Model, optimizer, generators and position. `restore` goes on from there with the same bits.
  checkpoint::State state() const;
  void restore(const checkpoint::State& state);

  const Job& job() const { return job_; }

 private:
  data::Batch next_batch();
  void set_factor(double factor);
  StepOutput forward(const data::Batch& batch) const;
  void backward_and_step(const at::Tensor& loss);

  Job job_;
  c10::Device device_;
  data::Loader loader_;
  std::optional<data::Loader> eval_loader_;
  amp::Policy policy_;
  amp::GradScaler scaler_;
  optim::Schedule schedule_;
  std::vector<double> base_lr_;  ///< of each parameter group
  double factor_ = 1;            ///< the schedule's, as it is in the optimizer now
  std::vector<at::Tensor> losses_;
  TrainMetrics metrics_;
  at::Tensor last_loss_;
  int64_t step_ = 0, samples_ = 0, skipped_ = 0, last_batch_size_ = 0;
  int64_t epoch_ = 0, batch_ = 0;
  bool started_ = false;  ///< the loader stands at (epoch_, batch_)
};

}  // namespace bellows::train
