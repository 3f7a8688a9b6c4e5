#include "bellows/train/step/evaluation.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <limits>

#include "bellows/comm/collectives.h"
#include "bellows/core/device.h"
#include "bellows/core/grad_mode.h"
#include "bellows/train/job.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/batch_placement.h"
#include "bellows/train/step/operator_rules.h"
#include "bellows/train/step/train_metrics.h"

namespace bellows::train {

namespace {

/// Adds loss and hits of packed texts. Returns the number of predicted tokens.
at::Tensor add_tokens(const at::Tensor& scores, const data::Batch& batch, at::Tensor& loss, at::Tensor& correct) {
  const TokenLoss told = next_token_loss(scores, batch);
  loss.add_(told.sum);
  correct.add_(at::sum(at::eq(at::argmax(scores, 2), told.targets)));
  return told.count;
}

at::Tensor scores_of(const Model& model, const data::Batch& batch, CompiledParts* compiled) {
  at::Tensor scores;
  const auto forward = [&] { scores = predict(model, batch); };
  if (compiled)
    compiled->evaluation(forward);
  else
    forward();
  return scores;
}

}  // namespace

namespace {

/// Sums over the batches, on the device.
struct Sums {
  explicit Sums(c10::Device device)
      : loss(at::scalar_tensor(0, at::TensorOptions(device).dtype(at::kDouble))),
        right(at::scalar_tensor(0, at::TensorOptions(device).dtype(at::kLong))) {}
  at::Tensor loss, right;
  at::Tensor tokens;       ///< number of tokens that have a next one; undefined: count samples
  at::Tensor predictions;  ///< number of predictions; undefined: one per sample
};

void add_batch(Sums& sums, const Task& task, const at::Tensor& output, const data::Batch& batch) {
  if (batch.contains("segment_ids")) {
    const at::Tensor told = add_tokens(output, batch, sums.loss, sums.right);
    sums.tokens = sums.tokens.defined() ? sums.tokens.add(told) : told;
    return;
  }
  const at::Tensor& target = batch[task.target];
  if (task.classifies_samples()) {
    sums.loss.add_(at::cross_entropy_loss(output, target), static_cast<double>(batch.size()));
    sums.right.add_(count_hits(output, target));
    return;
  }
  sums.loss.add_(task_loss(task, output, target), static_cast<double>(batch.size()));
  if (!task.has_accuracy()) return;
  const auto [right, all] = count_right(task, output, target);
  sums.right.add_(right);
  sums.predictions = sums.predictions.defined() ? sums.predictions.add(all) : all;
}

/// Loss and accuracy, from the sums of all ranks. Params: result – has the samples of this rank
void finish(Evaluation& result, Sums& sums, const Task& task, const comm::Group* ranks) {
  const bool counted = task.per_pixel || task.loss == LossKind::bce;
  int64_t predictions = counted && sums.predictions.defined() ? sums.predictions.item<int64_t>() : 0;
  if (ranks) {
    const at::Tensor samples = at::scalar_tensor(result.samples, sums.loss.options());
    std::vector<at::Tensor> own{sums.loss, sums.right.to(at::kDouble), samples};
    if (counted) own.push_back(at::scalar_tensor(predictions, sums.loss.options()));
    const at::Tensor all = comm::all_reduce(at::stack(own), *ranks);
    sums.loss = all[0];
    sums.right = all[1].to(at::kLong);
    result.samples = all[2].to(at::kLong).item<int64_t>();
    if (counted) predictions = all[3].to(at::kLong).item<int64_t>();
  }
  if (result.samples == 0) return;
  const auto right = static_cast<double>(sums.right.item<int64_t>());
  result.loss = sums.loss.item<double>() / static_cast<double>(result.samples);
  result.accuracy = !task.has_accuracy() ? std::numeric_limits<double>::quiet_NaN()
                                         : right / static_cast<double>(counted ? predictions : result.samples);
}

/// Copies the results of the rank that has the outputs to the other ranks of its group.
void share_results(Evaluation& result, const Task& task, const OutputRank& output) {
  result.metrics.resize(task.metrics.size());
  std::vector<double> numbers = {result.loss, result.accuracy, static_cast<double>(result.samples)};
  for (const auto& [name, value] : result.metrics) numbers.push_back(value);
  const at::Tensor shared = comm::broadcast(at::tensor(numbers, at::kDouble), output.rank, *output.group);
  const double* const values = shared.const_data_ptr<double>();
  result.loss = values[0];
  result.accuracy = values[1];
  result.samples = static_cast<int64_t>(values[2]);
  for (size_t i = 0; i < task.metrics.size(); ++i) result.metrics[i] = {task.metrics[i], values[3 + i]};
}

}  // namespace

Evaluation evaluate(const Model& model, data::Loader& loader, const Recipe& recipe, const Task& task,
                    const comm::Group* ranks, CompiledParts* compiled, const OutputRank* output_rank) {
  const auto begin = std::chrono::steady_clock::now();
  const c10::Device device = parse_device(recipe.device);
  const EvalMode eval_mode(model);
  const inference_mode no_graph;
  const amp::Policy policy = precision_policy(recipe);
  Evaluation result;
  Sums sums(device);
  TaskMetrics metrics(task);
  const bool has_outputs = !output_rank || output_rank->group->rank() == output_rank->rank;
  loader.start(0);
  const auto add = [&](const data::Batch& batch) {
    const auto precision = make_precision_guard(policy, device);
    const at::Tensor output = scores_of(model, batch, compiled);
    if (!has_outputs) return;
    result.samples += batch.size();
    add_batch(sums, task, output, batch);
    if (!task.metrics.empty()) metrics.update(output, batch[task.target]);
  };
  while (auto next = loader.next()) {
    const data::Batch batch = placed(std::move(*next), recipe, device);
    if (batch.size() > 0) with_operator_rules(recipe, [&] { add(batch); });
  }
  if (sums.tokens.defined()) result.samples = sums.tokens.item<int64_t>();
  if (has_outputs) finish(result, sums, task, ranks);
  if (has_outputs && result.samples > 0) result.metrics = metrics.compute(ranks);
  if (output_rank) share_results(result, task, *output_rank);
  TORCH_CHECK_VALUE(result.samples > 0, "evaluate: none of the ", loader.size(), " samples could be used.");
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace bellows::train
