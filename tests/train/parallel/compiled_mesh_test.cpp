// `compile` on the ranks of tensor, pipeline and context axes: they train like ranks without `compile`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bellows/compile/compile.h"
#include "bellows/models/blocks.h"
#include "bellows/parallel/exchange_op.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/tap/deferral.h"
#include "bellows/train/recipe/rank_keys.h"
#include "tests/train/parallel/divided_ranks.h"

namespace bellows::train::divided_ranks {

namespace {

using parallel::testing::run_processes;
using ::testing::HasSubstr;

constexpr int64_t mesh_steps = 4;  // an epoch has three steps, and its last batch has one sample

/// The outcomes of the ranks of the recipe's mesh, in threads of this process.
std::vector<Outcome> outcomes_of_ranks(const MakeJob& make, const Recipe& recipe) {
  recipe.validate();
  int ranks = 1;
  for (const comm::MeshAxis& axis : parse_mesh(recipe.mesh)) ranks *= axis.size;
  return outcomes_of_threads(make, recipe, ranks, mesh_steps);
}

/// Counts the losses that compiled functions compute.
MakeJob counting_job(const MakeJob& make, std::atomic<int>& count) {
  return [make, &count](const Recipe& recipe) {
    Job job = make(recipe);
    const auto note = [&count] { count += tap::active_deferral() ? 1 : 0; };
    job.loss = [note, loss = job.loss](const data::Batch& batch) {
      note();
      return loss(batch);
    };
    job.output_loss.mean = [note, mean = job.output_loss.mean](const at::Tensor& output, const data::Batch& batch) {
      note();
      return mean(output, batch);
    };
    return job;
  };
}

/// Compares compiled ranks with ranks without `compile`. Returns the outcomes of the last compiled run.
std::vector<Outcome> expect_compiled_ranks_train_alike(const MakeJob& make, Recipe recipe,
                                                       const std::vector<std::string>& parts) {
  std::atomic<int> compiled_losses = 0;
  const MakeJob counting = counting_job(make, compiled_losses);
  const std::vector<Outcome> plain = outcomes_of_ranks(counting, recipe);
  EXPECT_EQ(compiled_losses.load(), 0);
  std::vector<Outcome> compiled;
  for (const std::string& part : parts) {
    SCOPED_TRACE(c10::str(recipe.mesh, " ", recipe.pipeline_schedule, ", compile: ", part));
    recipe.compile = part;
    compiled_losses = 0;
    compiled = outcomes_of_ranks(counting, recipe);
    EXPECT_GT(compiled_losses.load(), 0) << "nothing was compiled";
    for (size_t rank = 0; rank < plain.size(); ++rank) expect_alike(compiled[rank], plain[rank]);
  }
  return compiled;
}

void expect_same_outcomes(const std::vector<Outcome>& got, const std::vector<Outcome>& expected) {
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_EQ(got[rank].losses, expected[rank].losses) << "rank " << rank;
    expect_same_bits(got[rank].weights, expected[rank].weights);
  }
}

/// Programs of this test generate no code, which would take the compiler much time. All other passes run.
struct WithoutKernels {
  WithoutKernels() { ::setenv("BELLOWS_WITHOUT_PASSES", "kernels", 1); }
  ~WithoutKernels() { ::unsetenv("BELLOWS_WITHOUT_PASSES"); }
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;
};

Recipe planned_recipe(const std::string& plan) {
  Recipe recipe = divided_recipe("tensor: 2");
  recipe.tensor_plan = plan;
  return recipe;
}

Recipe staged_recipe(const std::string& schedule, const std::string& mesh = "pipeline: 2") {
  Recipe recipe = divided_recipe(mesh);
  recipe.pipeline_schedule = schedule;
  recipe.pipeline_stages = schedule == "interleaved" ? 2 : 1;
  return recipe;
}

}  // namespace

TEST(CompiledMesh, TensorRanksTrainAlike) {
  Recipe recipe = planned_recipe("0: column, 2: row");
  recipe.batch_size = 5;  // all batches have the same size, so fewer programs are compiled
  recipe.gradient_accumulation_steps = 1;
  expect_compiled_ranks_train_alike(points_job, recipe, {"step"});
  const WithoutKernels without_kernels;
  for (const char* plan : {"0: column, 2: row", "2: vocabulary"})  // the second one divides the logits
    expect_compiled_ranks_train_alike(points_job, planned_recipe(plan), {"forward", "step"});
}

// The exchanges of layers and of the loss do not end a program.
TEST(CompiledMesh, ProgramsContainTheExchangesOfLayers) {
  run_ranks(2, [](const comm::Group& group) {
    const small::Task task = small::gpt_task();
    const Model model = small::with_weights(task.make(0, false));
    const parallel::TensorParallel tensor = parallel::parallelize(model, group, parallel::tensor_plan(model));
    const auto gradients = [&](const at::Tensor& ids, int64_t step) {
      for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
      const auto scope = tensor.scope();
      const at::Tensor loss = task.loss(tensor.forward(ids), step);
      loss.backward();
      return loss.detach();
    };
    auto compiled = compile(gradients, {.generate = false});
    for (int64_t step = 0; step < 4; ++step) {
      const at::Tensor ids = task.batch(step);
      const at::Tensor expected = gradients(ids, 0);
      std::vector<at::Tensor> expected_gradients;
      for (const at::Tensor& parameter : model.parameters()) expected_gradients.push_back(parameter.grad());
      EXPECT_TRUE(compiled(ids, int64_t{0}).equal(expected));
      for (size_t i = 0; i < expected_gradients.size(); ++i)
        EXPECT_TRUE(model.parameters()[i].grad().equal(expected_gradients[i])) << "gradient " << i;
    }
    EXPECT_GE(compiled.explain().followed_calls, 2) << compiled.explain().to_text();
    // The model reads the smallest and the largest token.
    EXPECT_EQ(compiled.explain().barriers, 2 * compiled.explain().followed_calls) << compiled.explain().to_text();
    for (const auto& cause : compiled.explain().barrier_causes) EXPECT_EQ(cause.op, "aten::_local_scalar_dense");
    const std::string program = compiled.recordings().front().to_text();
    EXPECT_THAT(program, HasSubstr("bellows::all_reduce"));
    EXPECT_THAT(program, HasSubstr("bellows::check_targets"));
  });
}

TEST(CompiledMesh, ARunThatIsStoppedAndResumedHasTheSameBits) {
  const WithoutKernels without_kernels;
  const TemporaryFolder folder;
  Recipe recipe = planned_recipe("0: column, 2: row");
  recipe.compile = "step";
  recipe.epochs = 2;
  const auto run = [&](const std::string& name, int64_t stop_after, bool resume) {
    recipe.run_folder = folder / name;
    std::vector<Job> jobs = jobs_for(2, recipe, points_job);
    const Model model = jobs.front().model;
    EXPECT_EQ(fit_on_ranks(recipe, std::move(jobs), stop_after, resume).stopped, stop_after > 0);
    return copies_of(model);
  };
  const std::vector<at::Tensor> whole = run("whole", -1, false);
  run("parts", 1, false);
  expect_same_bits(run("parts", -1, true), whole);
}

TEST(CompiledMesh, ErrorsOfExchangesAreReported) {
  run_ranks(2, [](const comm::Group& group) {
    auto loss = compile([&](const at::Tensor& logits, const at::Tensor& target) {
      return parallel::cross_entropy(logits, target, 4, group);
    });
    const at::Tensor logits = small::drawn({3, 2}, 1);
    EXPECT_THAT(error_of([&] { loss(logits, at::full({3}, 4, at::kLong)); }),
                HasSubstr("expected targets from 0 to 3 or the ignore_index -100, got 4"));
    auto without_group = compile([&](const at::Tensor& x) {
      const comm::Group own = comm::duplicate(group, "own");
      return parallel::all_reduce_op(x, own);
    });
    EXPECT_THAT(error_of([&] { without_group(logits); }),
                HasSubstr("the process group of a recorded exchange no longer exists"));
  });
}

TEST(CompiledMesh, StagesTrainAlike) {
  const WithoutKernels without_kernels;
  Recipe recipe = staged_recipe("1f1b");
  const auto compiled = expect_compiled_ranks_train_alike(language_job(0), recipe, {"forward", "step"});
  recipe.compile = "step";
  expect_same_outcomes(outcomes_of_ranks(language_job(0), recipe), compiled);
  for (const char* schedule : {"interleaved", "zero_bubble"})
    expect_compiled_ranks_train_alike(language_job(0), staged_recipe(schedule), {"step"});
}

// Ranks in threads share a random generator, which checkpointing does not allow.
TEST(CompiledMesh, ProcessesTrainAlikeWithDropout) {
  const WithoutKernels without_kernels;
  run_processes(2, [](const World& world, const std::string&) {
    Recipe tensor = divided_recipe("tensor: 2"), stages = staged_recipe("1f1b");
    tensor.sequence_parallel = true;
    stages.recompute = "blocks";
    for (Recipe recipe : {tensor, stages}) {
      SCOPED_TRACE(recipe.to_yaml());
      const Outcome plain = outcome_of(language_job(0.2), recipe, &world.group(), mesh_steps);
      recipe.compile = "step";
      expect_alike(outcome_of(language_job(0.2), recipe, &world.group(), mesh_steps), plain);
    }
  });
}

TEST(CompiledMesh, MicroBatchesShareTheirPrograms) {
  run_ranks(2, [](const comm::Group& group) {
    const small::Task task = small::gpt_task();
    const Model model = small::with_weights(task.make(0, false));
    auto forward = compile([](const std::function<void()>& body) { body(); }, {.generate = false});
    auto backward = compile([](const std::function<void()>& body) { body(); }, {.generate = false});
    parallel::Pipeline pipeline =
        parallel::pipeline(models::model_parts(model), group,
                           {.schedule = parallel::one_forward_one_backward(2, 4),
                            .forward_call = [&](const std::function<void()>& body) { forward(body); },
                            .backward_call = [&](const std::function<void()>& body) { backward(body); }});
    for (int step = 0; step < 3; ++step) {
      for (at::Tensor parameter : pipeline.parameters()) parameter.mutable_grad().reset();
      const at::Tensor ids = small::drawn_ids(37, {4, 6}, 5);
      pipeline.step({ids}, {ids}, [](const at::Tensor& logits, const std::vector<at::Tensor>& targets) {
        return at::cross_entropy_loss(logits.flatten(0, 1), targets[0].flatten());
      });
    }
    EXPECT_EQ(forward.recordings().size(), 1) << forward.explain().to_text();
    // The first micro-batch creates gradients, and the others add to them.
    EXPECT_EQ(backward.recordings().size(), 2) << backward.explain().to_text();
    EXPECT_EQ(backward.explain().barriers, 0) << backward.explain().to_text();
  });
}

TEST(CompiledMesh, RanksOfSequencesTrainAlike) {
  const WithoutKernels without_kernels;
  Recipe recipe = divided_recipe("context: 2");
  const auto compiled = expect_compiled_ranks_train_alike(language_job(0, 8), recipe, {"step"});
  recipe.compile = "step";
  expect_same_outcomes(outcomes_of_ranks(language_job(0, 8), recipe), compiled);
  recipe.compile = "none";
  recipe.context_method = "all_to_all";
  expect_compiled_ranks_train_alike(language_job(0, 8), recipe, {"step"});
}

TEST(CompiledMesh, OnTwoAxes) {
  const WithoutKernels without_kernels;
  for (const char* mesh : {"context: 2, tensor: 2", "pipeline: 2, context: 2", "pipeline: 2, tensor: 2"})
    expect_compiled_ranks_train_alike(language_job(0, 8), divided_recipe(mesh), {"step"});
  for (const auto& [mesh, strategy] : {std::pair{"data: 2, tensor: 2", "zero1"},
                                       {"shard: 2, tensor: 2", "zero3"},
                                       {"data: 2, pipeline: 2", "zero2"},
                                       {"shard: 2, pipeline: 2", "zero3"}}) {
    Recipe recipe = divided_recipe(mesh);
    recipe.data_parallel = strategy;
    expect_compiled_ranks_train_alike(language_job(0, 8), recipe, {"step"});
  }
  Recipe recipe = divided_recipe("context: 2, tensor: 2");
  recipe.sequence_parallel = true;
  expect_compiled_ranks_train_alike(language_job(0, 8), recipe, {"step"});
}

}  // namespace bellows::train::divided_ranks
