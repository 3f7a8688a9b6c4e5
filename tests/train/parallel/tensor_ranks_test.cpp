// Tensor parallelism in recipes: ranks that divide the layers of a model train like one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "tests/train/parallel/divided_ranks.h"

namespace bellows::train::divided_ranks {

using parallel::testing::run_processes;
using ::testing::HasSubstr;

TEST(TensorRanks, GiveWhatOneProcessGives) {
  run_processes(4, [](const World& world, const std::string&) {
    ComparedJob classes(classifier_job());
    if (world.rank() < 2) {
      ComparedJob(language_job(0.2)).expect_alike_on(pair_of(world), divided_recipe("tensor: 2"));
    } else {
      classes.expect_alike_on(pair_of(world), divided_recipe("tensor: 2"));
    }
    ComparedJob(language_job(0)).expect_alike_on(world, divided_recipe("data: 2, tensor: 2"));
    classes.expect_alike_on(world, divided_recipe("data: 2, tensor: 2"));
  });
}

TEST(TensorRanks, WithOtherKeys) {
  run_processes(2, [](const World& world, const std::string&) {
    ComparedJob dropping(language_job(0.2));
    Recipe recipe = divided_recipe("tensor: 2");
    recipe.sequence_parallel = true;
    dropping.expect_alike_on(world, recipe);
    recipe = divided_recipe("tensor: 2");
    recipe.recompute = "blocks";
    dropping.expect_alike_on(world, recipe);
    recipe = divided_recipe("tensor: 2");
    recipe.ema_decay = 0.9;
    recipe.on_nan = "skip";
    ComparedJob(language_job(0)).expect_alike_on(world, recipe);
  });
}

TEST(TensorRanks, AgreeOnTheScaleOfTheLoss) {
  run_processes(2, [](const World& world, const std::string&) {
    expect_agreement_on_the_loss_scale(language_job(0), "tensor: 2", world);
  });
}

TEST(TensorRanks, ARankThatEndsIsNamed) {
  Recipe recipe = divided_recipe("tensor: 2");
  recipe.tensor_plan = "0: column, 2: row";
  std::vector<Job> jobs = {points_job(recipe), points_job(recipe)};
  run_ranks(2, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    loop.run_steps(1);
    if (group.rank() == 1) return;
    EXPECT_THAT(error_of([&] { loop.run_steps(1); }), HasSubstr("rank 1"));
  });
}

TEST(TensorRanks, DivideLayersByAPlanOfTheRecipe) {
  for (const auto& [mesh, ranks] : {std::pair{"tensor: 2", 2}, std::pair{"data: 2, tensor: 2", 4}}) {
    Recipe recipe = divided_recipe(mesh);
    for (const char* plan : {"0: column, 2: row", "{\"2\": vocabulary}"}) {  // the second one divides the logits
      recipe.tensor_plan = plan;
      SCOPED_TRACE(recipe.tensor_plan);
      expect_threads_train_alike(points_job, recipe, ranks, 20);
    }
  }
}

TEST(TensorRanks, ARunMovesToOtherMeshesInTheMiddleOfEpochs) {
  run_processes(4, [](const World& world, const std::string& folder) {
    expect_run_moves(language_job(0),
                     {{1, "", 2},
                      {2, "tensor: 2", 4},
                      {4, "data: 2, tensor: 2", 6},
                      {2, "", 8},  // DDP
                      {4, "data: 2, tensor: 2", 10},
                      {1, "", 0}},
                     world, folder + "/mesh");
    // With dropout: ranks that read the same samples draw the masks of one process.
    expect_run_moves(language_job(0.2), {{1, "", 2}, {2, "tensor: 2", 4}, {4, "tensor: 4", 7}, {1, "", 0}}, world,
                     folder + "/dropout");
  });
}

TEST(TensorRanks, RanksWithDifferentSamplesDrawDifferentMasksAfterAMove) {
  run_processes(2, [](const World& world, const std::string& folder) {
    Recipe recipe = divided_recipe("{tensor: 2}");
    recipe.run_folder = folder + "/run";
    const comm::Group ranks = world;
    std::vector<at::Tensor> weights;
    fit_job(language_job(0.2), recipe, &ranks, 2, false, weights);
    const auto next_numbers = [&] { return comm::all_gather(at::rand({1}, at::kDouble), world); };
    const at::Tensor same = next_numbers();
    EXPECT_EQ(same[0].item<double>(), same[1].item<double>());
    recipe.mesh.clear();
    fit_job(language_job(0.2), recipe, &ranks, 4, true, weights);
    const at::Tensor different = next_numbers();
    EXPECT_NE(different[0].item<double>(), different[1].item<double>());
  });
}

// Checkpoints of ranks that hold parts of the weights become one safetensors file, which other programs can read.
TEST(TensorRanks, ExportsOfMeshesHoldTheWeightsOfOneProcess) {
  struct Mesh {
    const char *mesh, *strategy;
    int ranks;
  };
  Recipe recipe = divided_recipe();
  recipe.epochs = 2;
  Job alone = points_job(recipe);
  const Model model = alone.model;
  fit_rank(recipe, std::move(alone), nullptr, -1, false);
  for (const Mesh& mesh : {Mesh{"", "zero3", 2},
                           {"data: 2, shard: 2", "zero3", 4},
                           {"tensor: 2", "ddp", 2},
                           {"shard: 2, tensor: 2", "zero3", 4}}) {
    SCOPED_TRACE(c10::str(mesh.strategy, " ", mesh.mesh));
    const TemporaryFolder folder;
    recipe.run_folder = folder / "run";
    recipe.mesh = mesh.mesh;
    recipe.data_parallel = mesh.strategy;
    recipe.tensor_plan = recipe.mesh.find("tensor") == std::string::npos ? "auto" : "0: column, 2: row";
    const FitResult result = fit_on_ranks(recipe, jobs_for(mesh.ranks, recipe, points_job), -1, false);
    EXPECT_TRUE(std::filesystem::is_directory(result.checkpoint)) << "the ranks write it together";
    const std::string file = folder / "model.safetensors";
    EXPECT_EQ(checkpoint::export_safetensors(result.checkpoint, file), std::vector{file});
    std::map<std::string, at::Tensor> exported;
    for (const auto& [name, tensor] : io::load_safetensors(file)) exported[name] = tensor;
    EXPECT_EQ(exported.size(), model.state_dict().size());
    for (const auto& [name, tensor] : model.state_dict()) {
      ASSERT_TRUE(exported.contains(name)) << name;
      EXPECT_TRUE(at::allclose(exported[name], tensor.detach(), 1e-9, 1e-9)) << name;
    }
  }
}

TEST(TensorRanks, RecipesAreReadAndChecked) {
  const Recipe recipe = Recipe::parse(
      "mesh: {tensor: 2, data: 3}\nsequence_parallel: true\n"
      "tensor_plan: {\"*.query\": column, \"*.attn\": column fused=3 transposed, head: vocabulary, \"*.out\": row}\n");
  EXPECT_THAT(recipe.to_yaml(), HasSubstr("mesh: {data: 3, tensor: 2}\n"));
  EXPECT_THAT(recipe.to_yaml(), HasSubstr("tensor_plan: {\"*.query\": column, \"*.attn\": column fused=3 transposed, "
                                          "\"head\": vocabulary, \"*.out\": row}\n"));
  EXPECT_EQ(Recipe::parse(recipe.to_yaml()).to_yaml(), recipe.to_yaml());
  EXPECT_THAT(Recipe().to_yaml(), HasSubstr("tensor_plan: auto\n"));
  const auto message = [](const std::string& text) { return error_of([&] { Recipe::parse(text); }); };
  const auto with_mesh = [&](const std::string& text) { return message("mesh: {tensor: 2}\n" + text); };
  EXPECT_THAT(message("tensor_plan: {a: row}"), HasSubstr("tensor_plan works only with an axis tensor in mesh"));
  EXPECT_THAT(message("sequence_parallel: true"), HasSubstr("sequence_parallel works only with an axis tensor"));
  EXPECT_THAT(
      with_mesh("tensor_plan: {a: colunm}"),
      HasSubstr("no style is called \"colunm\". The styles are column, row and vocabulary. Did you mean \"column\"?"));
  EXPECT_THAT(with_mesh("tensor_plan: {a: column twice}"), HasSubstr("expected `transposed` or `fused=3`"));
  EXPECT_THAT(with_mesh("tensor_plan: column"), HasSubstr("expected auto, or patterns with styles such as"));
  EXPECT_THAT(message("mesh: {tensor: 1}"),
              HasSubstr("or with an axis pipeline, context or tensor of at least 2, got ddp"));
  EXPECT_THAT(with_mesh("data_parallel: dp"), HasSubstr("but data_parallel = dp trains in one process"));
  EXPECT_THAT(with_mesh("data_parallel: zero2"),
              HasSubstr("data_parallel = zero2 divides the state among ranks with the same part of the model, and the "
                        "mesh has no axis data or shard of at least 2"));
  EXPECT_THAT(message("mesh: {shard: 2, tensor: 2}"),
              HasSubstr("the axis shard belongs to ZeRO, and data_parallel = ddp keeps complete optimizer state"));
  for (const char* mesh : {"{data: 2, tensor: 2}", "{data: 2, shard: 2, tensor: 2}"})
    EXPECT_EQ(message(c10::str("data_parallel: zero3\nmesh: ", mesh)), "");
  EXPECT_EQ(with_mesh("compile: step\nmemory_budget: 0.5"), "");
  EXPECT_THAT(with_mesh("optimizer: adafactor"), HasSubstr("adafactor uses rows and columns of complete parameters"));
  EXPECT_THAT(with_mesh("optimizer: muon"), HasSubstr("muon uses complete matrices"));
  EXPECT_THAT(with_mesh("optimizer: lamb"), HasSubstr("lamb uses norms of complete parameters"));
  EXPECT_THAT(with_mesh("gradient_compression: bf16"), HasSubstr("gradient_compression = bf16"));
  EXPECT_THAT(with_mesh("reproducible_ranks: 2"), HasSubstr("reproducible_ranks = 2"));
  EXPECT_THAT(with_mesh("sequence_parallel: true\nrecompute: blocks"), HasSubstr("both run the blocks of the model"));
  EXPECT_THAT(with_mesh("recompute: blocks\nactivation_memory_budget: 0.5"), HasSubstr("repeat different exchanges"));
}

TEST(TensorRanks, JobsThatCannotBeDividedAreRefused) {
  const auto error_with = [](const std::function<void(Recipe&)>& change, const MakeJob& make = points_job) {
    Recipe recipe = divided_recipe("tensor: 2");
    change(recipe);
    return error_on_two_ranks(make, {recipe, recipe});
  };
  EXPECT_THAT(error_with([](Recipe&) {}), HasSubstr("the parameters of the model \"net\" are not named like those of"));
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.tensor_plan = "layer: column"; }),
              HasSubstr("the pattern \"layer\" of the plan matches no module"));
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.mesh = "data: 2, tensor: 2"; }), HasSubstr("data 2 × tensor 2"));
  const auto with_mse = [](const Recipe& recipe) {
    Job job = points_job(recipe);
    job.task.loss = LossKind::mse;
    job.loss = [model = job.model](const data::Batch& batch) {
      const at::Tensor output = model.forward(batch["image"]);
      return at::mse_loss(output, at::zeros_like(output));
    };
    return job;
  };
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.tensor_plan = "2: vocabulary"; }, with_mse),
              HasSubstr("only the losses cross_entropy and next_token support divided outputs"));
  const auto after_a_step = [](const Recipe& recipe) {
    Job job = points_job(recipe);
    job.loss(data::Batch({{"image", small::drawn({2, 8}, 1)}, {"label", at::zeros({2}, at::kLong)}}, {}, {}))
        .loss.backward();
    job.optimizers.front()->step();
    return job;
  };
  EXPECT_THAT(error_with([](Recipe& recipe) { recipe.tensor_plan = "0: column, 2: row"; }, after_a_step),
              HasSubstr("already has state for complete ones"));
}

TEST(TensorRanks, AModelThatIsRefusedStaysComplete) {
  std::vector<std::pair<Model, std::vector<at::Tensor>>> before;
  const MakeJob make = [&](const Recipe& recipe) {
    const Model model = small::with_weights(small::series_task().make(0, false));
    before.emplace_back(model, copies_of(model));
    return job_of(recipe, model, cross_entropy_loss(model), points_job(recipe).train, Task{});
  };
  Recipe recipe = divided_recipe("tensor: 2");
  recipe.sequence_parallel = true;
  EXPECT_THAT(error_on_two_ranks(make, {recipe, recipe}), HasSubstr("does not support sequence parallelism"));
  for (const auto& [model, weights] : before) expect_same_bits(copies_of(model), weights);
}

TEST(TensorRanks, RanksThatDifferAreNamed) {
  Recipe recipe = divided_recipe("tensor: 2"), other = recipe;
  recipe.tensor_plan = "0: column, 2: row";
  other.tensor_plan = "2: vocabulary";
  const std::string error = error_on_two_ranks(points_job, {recipe, other});
  EXPECT_THAT(error, HasSubstr("is tensor_plan: {\"2\": vocabulary} on rank 1"));
}

TEST(TensorRanks, TheBatchMayBeSetForRanksWithOtherSamples) {
  Recipe recipe = divided_recipe("tensor: 2");
  recipe.tensor_plan = "0: column, 2: row";
  recipe.batch_size_per_rank = 3;
  EXPECT_THAT(error_on_two_ranks(points_job, {recipe, recipe}),
              HasSubstr("batch_size_per_rank = 3 needs batches of 3 samples with 1 rank"));
  recipe.batch_size = 3;
  EXPECT_EQ(error_on_two_ranks(points_job, {recipe, recipe}), "");
}

}  // namespace bellows::train::divided_ranks
