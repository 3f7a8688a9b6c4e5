#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/comm/world.h"
#include "bellows/core/seed.h"
#include "bellows/optim/optimizers.h"
#include "tests/parallel/own_processes.h"
#include "tests/parallel/tensor/tensor_support.h"
#include "tests/train/ranks_jobs.h"
#include "tests/train/support.h"

// Small transformers in recipes whose ranks read the same samples, compared with one process.
namespace bellows::train::divided_ranks {

namespace small = parallel::testing::tensor;
using comm::World;
using parallel::testing::run_ranks;

constexpr int64_t texts = 25, words = 37;
constexpr double tolerance = 1e-9;

inline Recipe divided_recipe(const std::string& mesh = "") {
  Recipe recipe;
  recipe.mesh = mesh;
  recipe.batch_size = 6;  // 25 texts: the last batch of an epoch has one
  recipe.gradient_accumulation_steps = 2;
  recipe.max_grad_norm = 0.2;
  recipe.lr = 0.01;
  return recipe;
}

inline data::Dataset small_texts(int64_t batch, int64_t tokens) {
  const at::Tensor segments = at::ones({texts, tokens}, at::kLong);
  segments.slice(0, 3, 9).slice(1, 4).zero_();
  segments.slice(0, 9, 14).slice(1, 2).fill_(2);
  const at::Tensor ids = small::drawn_ids(words - 1, {texts, tokens}, 7) + 1;
  return data::Dataset(data::from_tensors({{"tokens", ids}, {"segment_ids", segments}})).batch(batch).threads(0);
}

using MakeJob = std::function<Job(const Recipe&)>;

inline Job job_of(const Recipe& recipe, const Model& model, LossFn loss, const data::Dataset& data, Task task) {
  auto optimizer = std::make_shared<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = recipe.lr});
  Job job{recipe, model, {optimizer}, std::move(loss), data.shuffle(2), data};
  job.output_loss = output_loss(task);
  job.task = std::move(task);
  return job;
}

/// Predicts the next token, with a loss over the vocabulary.
inline MakeJob language_job(double dropout, int64_t tokens = 6) {
  return [dropout, tokens](const Recipe& recipe) {
    seed_everything(3);
    const Model model = small::with_weights(small::gpt_task().make(dropout, false));
    Task task{.loss = LossKind::next_token, .label_smoothing = 0.1};
    return job_of(recipe, model, next_token_loss(model, 0.1), small_texts(recipe.batch_size, tokens), task);
  };
}

/// Classifies texts with 37 words, of which word 0 is padding.
inline MakeJob classifier_job(int64_t tokens = 6) {
  return [tokens](const Recipe& recipe) {
    seed_everything(3);
    const Model model = small::with_weights(models::bert({.num_labels = 3,
                                                          .vocab_size = words,
                                                          .hidden_size = 16,
                                                          .num_hidden_layers = 2,
                                                          .num_attention_heads = 4,
                                                          .intermediate_size = 24,
                                                          .hidden_dropout_prob = 0,
                                                          .attention_probs_dropout_prob = 0,
                                                          .max_position_embeddings = 8}));
    const at::Tensor ids = small::drawn_ids(words, {texts, tokens}, 8), labels = small::drawn_ids(3, {texts}, 9);
    const data::Dataset data = data::Dataset(data::from_tensors({{"tokens", ids}, {"label", labels}}));
    return job_of(recipe, model, cross_entropy_loss(model), data.batch(recipe.batch_size).threads(0), Task{});
  };
}

/// A model without an automatic plan, on 25 points.
inline Job points_job(const Recipe& recipe) {
  seed_everything(3);
  const torch::nn::Sequential net(torch::nn::Linear(8, 12), torch::nn::Tanh(), torch::nn::Linear(12, 4));
  const Model model = small::with_weights(Model::of(net, "net"));
  const data::Dataset data = data::Dataset(
      data::from_tensors({{"image", small::drawn({texts, 8}, 4)}, {"label", small::drawn_ids(4, {texts}, 5)}}));
  return job_of(recipe, model, cross_entropy_loss(model), data.batch(recipe.batch_size).threads(0), Task{});
}

/// The same job in fp32.
inline MakeJob in_single_precision(const MakeJob& make) {
  return [make](const Recipe& recipe) {
    Job job = make(recipe);
    job.model.to(at::kFloat);
    return job;
  };
}

struct Outcome {
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
  double accuracy = 0;
  Evaluation evaluation;
  int64_t samples = 0, skipped = 0;
};

/// The outcome of 20 steps on the ranks of a group, or alone. The weights are complete.
inline Outcome outcome_of(const MakeJob& make, const Recipe& recipe, const comm::Group* group, int64_t steps = 20) {
  Job job = make(recipe);
  if (group) job.ranks = *group;
  TrainLoop loop(std::move(job));
  loop.run_steps(steps);
  Outcome outcome{.weights = {}, .losses = loop.take_losses(), .accuracy = loop.take_accuracy()};
  outcome.evaluation = loop.evaluate();
  outcome.samples = loop.sample_count();
  outcome.skipped = loop.skipped_steps();
  loop.ranks().complete_parameters();
  outcome.weights = copies_of(loop.job().model);
  return outcome;
}

inline void expect_alike(const Outcome& ranks, const Outcome& alone) {
  ASSERT_EQ(ranks.losses.size(), alone.losses.size());
  for (size_t i = 0; i < alone.losses.size(); ++i)
    EXPECT_NEAR(ranks.losses[i], alone.losses[i], tolerance) << "step " << i;
  EXPECT_NEAR(ranks.evaluation.loss, alone.evaluation.loss, tolerance);
  EXPECT_EQ(ranks.evaluation.samples, alone.evaluation.samples);
  EXPECT_EQ(ranks.samples, alone.samples);
  EXPECT_EQ(ranks.skipped, alone.skipped);
  ASSERT_EQ(ranks.weights.size(), alone.weights.size());
  for (size_t i = 0; i < alone.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(ranks.weights[i], alone.weights[i], tolerance, tolerance)) << "tensor " << i;
  EXPECT_DOUBLE_EQ(ranks.evaluation.accuracy, alone.evaluation.accuracy);
  EXPECT_TRUE(ranks.accuracy == alone.accuracy || std::isnan(alone.accuracy));
}

/// The recipe without the keys that divide the model, its state or its activations.
inline Recipe undivided(Recipe recipe) {
  const Recipe plain;
  recipe.mesh = plain.mesh;
  recipe.data_parallel = plain.data_parallel;
  recipe.shard_units = plain.shard_units;
  recipe.shard_state_over_all = plain.shard_state_over_all;
  recipe.tensor_plan = plain.tensor_plan;
  recipe.sequence_parallel = plain.sequence_parallel;
  recipe.context_method = plain.context_method;
  recipe.pipeline_schedule = plain.pipeline_schedule;
  recipe.pipeline_stages = plain.pipeline_stages;
  recipe.micro_batches = plain.micro_batches;
  recipe.recompute = plain.recompute;
  return recipe;
}

/// A job whose training on ranks is compared with that of one process, which trains once for each undivided recipe.
class ComparedJob {
 public:
  explicit ComparedJob(MakeJob make, int64_t steps = 20) : make_(std::move(make)), steps_(steps) {}

  /// Params: recipe – of the ranks, with a mesh
  void expect_alike_on(const comm::Group& group, const Recipe& recipe) {
    SCOPED_TRACE(recipe.data_parallel + " " + recipe.mesh);
    const Outcome ranks = outcome_of(make_, recipe, &group, steps_);
    const Recipe single = undivided(recipe);
    auto [alone, is_new] = alone_.try_emplace(single.to_yaml());
    if (is_new) alone->second = outcome_of(make_, single, nullptr, steps_);
    expect_alike(ranks, alone->second);
  }

 private:
  MakeJob make_;
  int64_t steps_;
  std::map<std::string, Outcome> alone_;
};

/// The outcomes of ranks in threads of this process. Threads share the default generator, so the job must draw no random
/// numbers.
inline std::vector<Outcome> outcomes_of_threads(const MakeJob& make, const Recipe& recipe, int ranks, int64_t steps) {
  std::vector<Job> jobs = jobs_for(ranks, recipe, make);
  std::vector<Outcome> outcomes(jobs.size());
  run_ranks(ranks, [&](const comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    outcomes[rank] = outcome_of([&](const Recipe&) { return std::move(jobs[rank]); }, recipe, &group, steps);
  });
  return outcomes;
}

/// Compares outcomes_of_threads() with one process.
inline void expect_threads_train_alike(const MakeJob& make, const Recipe& recipe, int ranks, int64_t steps) {
  SCOPED_TRACE(recipe.mesh);
  const Outcome alone = outcome_of(make, undivided(recipe), nullptr, steps);
  for (const Outcome& outcome : outcomes_of_threads(make, recipe, ranks, steps)) expect_alike(outcome, alone);
}

/// Ranks 0 and 1, or ranks 2 and 3.
inline comm::Group pair_of(const World& world) {
  const int first = world.rank() / 2 * 2;
  return world.subgroup({first, first + 1}, c10::str("pair ", first / 2));
}

inline std::string error_on_two_ranks(const MakeJob& make, const std::vector<Recipe>& recipes) {
  std::vector<Job> jobs;  // one after the other, because threads share the default generator
  std::ranges::transform(recipes, std::back_inserter(jobs), make);
  return error_of_jobs(std::move(jobs), 1);
}

/// A part of a run: the ranks 0 to `ranks` - 1 train until a step.
struct Phase {
  int ranks;
  std::string mesh;
  int64_t end;  ///< 0: to the end
  std::string strategy = "ddp";
};

inline FitResult fit_job(const MakeJob& make, const Recipe& recipe, const comm::Group* group, int64_t end, bool resume,
                         std::vector<at::Tensor>& weights, bool accept_changes = false) {
  Job job = make(recipe);
  const Model model = job.model;
  const FitResult result = fit_rank(recipe, std::move(job), group, end, resume, accept_changes);
  weights = copies_of(model);
  return result;
}

/// Runs one phase after the other, and compares the last one with a run without interruption.
inline void expect_run_moves(const MakeJob& make, const std::vector<Phase>& phases, const World& world,
                             const std::string& folder) {
  Recipe recipe = divided_recipe();
  recipe.epochs = 4;  // of three steps
  recipe.ema_decay = 0.9;
  std::vector<at::Tensor> expected, weights;
  const FitResult whole = fit_job(make, recipe, nullptr, 0, false, expected);
  recipe.run_folder = folder;
  FitResult last;
  for (const Phase& phase : phases) {
    SCOPED_TRACE(phase.strategy + " " + phase.mesh);
    recipe.mesh = phase.mesh;
    const bool other_strategy = std::exchange(recipe.data_parallel, phase.strategy) != phase.strategy;
    std::vector<int> members(static_cast<size_t>(phase.ranks));
    std::iota(members.begin(), members.end(), 0);
    if (world.rank() < phase.ranks) {
      std::optional<comm::Group> group;
      if (phase.ranks > 1) group = world.subgroup(members, c10::str("phase ", phase.end));
      const bool resumes = &phase != &phases.front();
      last = fit_job(make, recipe, group ? &*group : nullptr, phase.end, resumes, weights, other_strategy);
      EXPECT_EQ(last.stopped, phase.end > 0);
    }
    comm::barrier(world);
  }
  if (world.rank() > 0) return;
  EXPECT_EQ(last.steps, whole.steps);
  ASSERT_EQ(last.history.size(), whole.history.size());
  for (size_t i = 0; i < whole.history.size(); ++i) {
    EXPECT_NEAR(last.history[i].train_loss, whole.history[i].train_loss, tolerance) << "epoch " << i;
    EXPECT_NEAR(last.history[i].eval_loss, whole.history[i].eval_loss, tolerance) << "epoch " << i;
  }
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(weights[i], expected[i], tolerance, tolerance)) << "tensor " << i;
}

/// One process may skip other steps, because its loss does not compute gradients of logits in fp16.
inline void expect_agreement_on_the_loss_scale(const MakeJob& make, const std::string& mesh, const World& world,
                                               const std::string& strategy = "ddp") {
  Recipe recipe = divided_recipe(mesh);
  recipe.data_parallel = strategy;
  recipe.precision = "fp16";
  recipe.on_nan = "skip";
  const Outcome outcome = outcome_of(in_single_precision(make), recipe, &world.group());
  EXPECT_GE(outcome.skipped, 1) << "the scale starts so high that gradients overflow";
  EXPECT_LT(outcome.losses.back(), outcome.losses.front());
  std::vector<at::Tensor> numbers = {at::tensor(outcome.losses, at::kDouble),
                                     at::tensor(static_cast<double>(outcome.skipped), at::kDouble).view({1})};
  for (const at::Tensor& weight : outcome.weights) numbers.push_back(weight.to(at::kDouble).flatten());
  const at::Tensor all = comm::all_gather(at::cat(numbers), world);
  for (const at::Tensor& numbers_of_rank : all.unbind())
    EXPECT_TRUE(numbers_of_rank.equal(all[0])) << "also the weights that each rank updates on its own";
}

}  // namespace bellows::train::divided_ranks
