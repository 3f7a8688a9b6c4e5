#pragma once

#include "bellows/models/blocks.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/pipeline/stages.h"
#include "tests/parallel/tensor/tensor_support.h"

// The small transformers of the tensor tests, trained on one process and on the ranks of a pipeline.
namespace bellows::parallel::testing::stages {

using tensor::drawn_ids;
using tensor::Outcome;
using tensor::Task;

constexpr int64_t batch_samples = 5;  ///< no number of micro-batches divides it

inline at::Tensor ids_of(int64_t number) {
  return drawn_ids(37, {batch_samples, 6}, static_cast<uint64_t>(number));
}

/// Targets, of which each sample ignores another number.
inline at::Tensor targets_of(int64_t number) {
  const at::Tensor targets = drawn_ids(37, {batch_samples, 6}, 900 + static_cast<uint64_t>(number));
  for (int64_t sample = 0; sample < batch_samples; ++sample) targets[sample].slice(0, 0, sample % 4).fill_(-100);
  return targets;
}

inline at::Tensor mean_token_loss(const at::Tensor& logits, const std::vector<at::Tensor>& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets[0].flatten(), {}, at::Reduction::Mean, -100, 0.1);
}

inline double token_count(const std::vector<at::Tensor>& targets) {
  return targets[0].ne(-100).sum().item<double>();
}

/// The batches of a training, and the loss of their outputs.
struct StagedBatches {
  std::function<at::Tensor(int64_t number)> inputs = ids_of, targets = targets_of;
  PipelineLoss loss = mean_token_loss;
  std::function<double(const std::vector<at::Tensor>&)> weight = token_count;  ///< null: the number of samples
};

struct StagedTraining {
  int64_t steps = 20, accumulate = 1;
  double max_norm = 0, dropout = 0;
  std::vector<int> first_parts = {};
  bool divide_backward = true;
  at::ScalarType dtype = at::kDouble;
  bool one_batch = false;  ///< all steps train on the same batch, so that the loss falls
  StagedBatches batches = {};
  std::function<void(const Model&)> prepare = nullptr;  ///< called with the model before it is divided
  std::optional<comm::Group> data = std::nullopt, tensor = std::nullopt;  ///< other axes of a mesh
  std::optional<comm::Group> world = std::nullopt;                        ///< all ranks, if there are other axes
};

/// Trains with SGD. `backward` computes the gradients of a batch, times a factor, and returns its loss.
inline void train(const StagedTraining& run, const std::vector<at::Tensor>& parameters,
                  const std::function<double(int64_t number, double factor)>& backward, Outcome& outcome) {
  optim::SGD optimizer(parameters, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  for (int64_t step = 0; step < run.steps; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (int64_t part = 0; part < run.accumulate; ++part)
      sum += backward(run.one_batch ? 0 : step * run.accumulate + part, 1.0 / static_cast<double>(run.accumulate));
    outcome.losses.push_back(sum);
    if (run.max_norm > 0) outcome.norms.push_back(optim::clip_grad_norm_(parameters, run.max_norm).item<double>());
    optimizer.step();
  }
}

inline Outcome train_alone(const Task& task, const StagedTraining& run) {
  const Model model = tensor::make_on_rank(task, {.dropout = run.dropout, .dtype = run.dtype});
  model.train();
  Outcome outcome;
  train(
      run, tensor::distinct_parameters(model),
      [&](int64_t number, double factor) {
        const at::Tensor output = model.forward(run.batches.inputs(number));
        const at::Tensor loss = run.batches.loss(output, {run.batches.targets(number)});
        (loss * factor).backward();
        return loss.item<double>();
      },
      outcome);
  for (const auto& [name, parameter] : model.named_parameters())
    outcome.weights.emplace_back(name, parameter.detach().clone());
  return outcome;
}

inline Pipeline make_pipeline(const Task& task, const StagedTraining& run, const PipelineSchedule& schedule,
                              const comm::Group& group) {
  const Model model = tensor::make_on_rank(task, {.dropout = run.dropout, .dtype = run.dtype});
  model.train();
  if (run.prepare) run.prepare(model);
  PipelineOptions options{.schedule = schedule,
                          .first_parts = run.first_parts,
                          .seed = 7,
                          .divide_backward = run.divide_backward,
                          .data = run.data};
  if (run.tensor) options.tensor = parallelize(model, *run.tensor, tensor_plan(model));
  return pipeline(models::model_parts(model), group, options);
}

inline Outcome train_on_rank(const Task& task, const StagedTraining& run, const PipelineSchedule& schedule,
                             const comm::Group& group) {
  Pipeline stages = make_pipeline(task, run, schedule, group);
  Outcome outcome;
  train(
      run, stages.parameters(),
      [&](int64_t number, double factor) {
        return stages.step({run.batches.inputs(number)}, {run.batches.targets(number)}, run.batches.loss,
                           {.loss_factor = factor, .weight = run.batches.weight});
      },
      outcome);
  outcome.weights = comm::gather(stages.shards(), run.world.value_or(group));
  return outcome;
}

/// Freezes the embeddings and the first block of GPT-2.
inline void freeze_first_stage(const Model& model) {
  for (const auto& [name, parameter] : model.named_parameters())
    at::Tensor(parameter).requires_grad_(name.find("h.1.") != name.npos || name.find("ln_f") != name.npos);
}

inline void expect_like(const Outcome& got, const Outcome& expected, double tolerance) {
  tensor::expect_losses(got, expected, tolerance);
  ASSERT_EQ(got.norms.size(), expected.norms.size());
  for (size_t i = 0; i < got.norms.size(); ++i)
    EXPECT_NEAR(got.norms[i], expected.norms[i], tolerance * expected.norms[i]) << "step " << i;
  tensor::expect_close(got.weights, expected.weights, tolerance);
}

}  // namespace bellows::parallel::testing::stages
