#pragma once

#include <memory>

#include "bellows/models/blocks.h"
#include "bellows/parallel/context/context_parallel.h"
#include "bellows/parallel/context/sequence_layout.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "tests/parallel/tensor/tensor_support.h"

// Attention and training on the ranks of a context axis, compared with one process.
namespace bellows::parallel::testing::context {

using tensor::drawn;
using tensor::drawn_ids;
using tensor::mask_seed;
using tensor::Outcome;
using tensor::Task;
using tensor::Training;

/// The tasks of tensor parallelism, with sequences that 2 and 4 ranks divide in zig-zag order.
inline std::vector<Task> text_tasks() {
  std::vector<Task> tasks = {tensor::bert_task(), tensor::gpt_task(), tensor::distilbert_task()};
  for (Task& task : tasks)
    task.batch = [](int64_t step) { return drawn_ids(37, {3, 8}, static_cast<uint64_t>(step)); };  // 0 is padding
  return tasks;
}

inline Task series_task() {
  Task task = tensor::series_task();
  task.batch = [](int64_t step) { return drawn({3, 8, 3}, 50 + static_cast<uint64_t>(step)); };
  return task;
}

/// How the ranks divide a sequence.
struct Division {
  ContextOptions options;
  bool gather = true;
  std::vector<int64_t> stacks = {2};
  RunContextBlock run;  ///< see ContextBlocks
  bool ddp = true;      ///< DistributedDataParallel averages the gradients; false: average_gradients()
};

/// The mean loss of this rank's tokens of task.loss().
inline at::Tensor divided_token_loss(const ContextParallel& context, const at::Tensor& logits, int64_t step) {
  const int64_t tokens = logits.size(1) * context.group().size();
  at::Tensor target = drawn_ids(37, {logits.size(0) * tokens}, 900 + static_cast<uint64_t>(step));
  target[0] = -100;
  const at::Tensor own = context.slice(target.view({logits.size(0), tokens}), 1).flatten();
  const at::Tensor sum =
      at::cross_entropy_loss(logits.flatten(0, 1), own, {}, at::Reduction::Sum, -100, /*label_smoothing=*/0.1);
  return context.loss(sum, own.ne(-100).sum());
}

inline NamedTensors gradients_of(const Model& model) {
  NamedTensors gradients;
  for (const auto& [name, parameter] : model.named_parameters()) gradients.emplace_back(name, parameter.grad().clone());
  return gradients;
}

/// Trains on this rank.
inline Outcome train_divided(const Task& task, const Training& how, const ContextParallel& context,
                             const Division& division) {
  const Model model = tensor::make_on_rank(task, how);
  model.train();
  models::run_blocks_by(model, context.blocks(division.stacks, {.gather = division.gather, .run = division.run}));
  const DistributedDataParallel ddp(model, context.group());
  const auto scope = context.scope();
  const std::vector<at::Tensor> parameters = tensor::distinct_parameters(model);
  optim::SGD optimizer(parameters, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  Outcome outcome;
  for (int64_t step = 0; step < how.steps; ++step) {
    optimizer.zero_grad();
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (int64_t part = 0; part < how.accumulate; ++part) {
      const int64_t number = how.batch_number(step, part);
      std::unique_ptr<DistributedDataParallel::NoSync> alone;
      if (!division.ddp || part + 1 < how.accumulate) alone.reset(new DistributedDataParallel::NoSync(ddp.no_sync()));
      const at::Tensor output = ddp.forward(tensor::cast_batch(task.batch(number), how.dtype));
      const at::Tensor loss =
          (division.gather ? task.loss(output, number) : divided_token_loss(context, output, number)) /
          static_cast<double>(how.accumulate);
      sum += loss.detach().to(at::kDouble);
      loss.backward();
    }
    if (!division.ddp) context.average_gradients(parameters);
    outcome.losses.push_back(comm::all_reduce(sum, context.group(), comm::Reduce::mean).item<double>());
    if (step == 0) outcome.gradients = gradients_of(model);
    if (how.max_norm > 0) outcome.norms.push_back(optim::clip_grad_norm_(parameters, how.max_norm).item<double>());
    optimizer.step();
  }
  for (const auto& [name, parameter] : model.named_parameters())
    outcome.weights.emplace_back(name, parameter.detach().clone());
  return outcome;
}

inline void expect_divided_like_one_process(const Task& task, const Training& how, int ranks, double tolerance,
                                            const Division& division = {}) {
  SCOPED_TRACE(task.name + " on " + std::to_string(ranks) + " ranks");
  const Outcome alone = tensor::train_alone(task, how);
  std::mutex reports;
  run_ranks(ranks, [&](const comm::Group& group) {
    ContextOptions options = division.options;
    options.generator = at::detail::createCPUGenerator(mask_seed);
    if (division.run) options.generator.reset();
    const Outcome got = train_divided(task, how, ContextParallel(group, options), division);
    const std::lock_guard<std::mutex> lock(reports);
    tensor::expect_close(got, alone, tolerance);
  });
}

}  // namespace bellows::parallel::testing::context
