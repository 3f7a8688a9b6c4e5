#include <gmock/gmock.h>
#include <torch/nn.h>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/train/trainer.h"
#include "tests/train/ranks_jobs.h"

// The key `reproducible_ranks`: the same bits on 1, 2 and 4 ranks.
namespace bellows::train {
namespace {

using parallel::testing::run_ranks;
using ::testing::HasSubstr;

/// Sets the model, its optimizer and its data, in fp32: sums in another order round otherwise.
/// Params: sizes – of the input of one sample
Job with_model(Job job, const Recipe& recipe, torch::nn::Sequential net, std::vector<int64_t> sizes) {
  job.model = Model::of(net, "net");
  job.optimizers = {std::make_shared<optim::AdamW>(job.model.parameters(), optim::AdamWOptions{.lr = recipe.lr})};
  job.loss = cross_entropy_loss(job.model);
  at::manual_seed(6);
  sizes.insert(sizes.begin(), points);
  const at::Tensor x = torch::randn(sizes), labels = x.flatten(1).slice(1, 0, 3).argmax(1);
  const data::Dataset data =
      data::Dataset(data::from_tensors({{"image", x}, {"label", labels}})).batch(recipe.batch_size).threads(0);
  job.train = data.shuffle(2);
  job.eval = data;
  return job;
}

/// A model with a batch norm.
Job job_with_norm(const Recipe& recipe) {
  Job job = ranks_job(recipe);
  torch::nn::Sequential net(torch::nn::Linear(8, 15), torch::nn::BatchNorm1d(15), torch::nn::Tanh(),
                            torch::nn::Linear(15, 3));
  return with_model(std::move(job), recipe, net, {8});
}

/// A model with convolutions and a batch norm. Ranks on threads share the generators, so dropout needs processes: see
/// parallel/reproducible_kill_test.cpp.
Job job_with_convolutions(const Recipe& recipe) {
  Job job = ranks_job(recipe);
  using namespace torch::nn;
  Sequential net(Conv2d(Conv2dOptions(2, 6, 3).padding(1)), BatchNorm2d(6), ReLU(),
                 Conv2d(Conv2dOptions(6, 4, 3).stride(2)), Flatten(), Linear(4 * 3 * 3, 3));
  return with_model(std::move(job), recipe, net, {2, 8, 8});
}

using MakeReproducible = Job (*)(const Recipe&);

Recipe reproducible_recipe(const std::string& strategy) {
  Recipe recipe = ranks_recipe();
  recipe.batch_size = 20;  // 77 points: the last batch has 17, of which part 3 gets two
  recipe.data_parallel = strategy;
  recipe.reproducible_ranks = 4;
  return recipe;
}

std::vector<at::Tensor> state_of(const Model& model) {
  std::vector<at::Tensor> state;
  for (const auto& [name, tensor] : model.state_dict()) state.push_back(tensor.detach().clone());
  return state;
}

/// Parameters and buffers of rank 0.
std::vector<at::Tensor> trained_on(const Recipe& recipe, int ranks, int64_t steps,
                                   MakeReproducible make = job_with_norm) {
  std::vector<Job> jobs = jobs_for(ranks, recipe, make);
  std::vector<at::Tensor> result;
  run_ranks(ranks, [&](const comm::Group& group) {
    Job& job = jobs[static_cast<size_t>(group.rank())];
    job.ranks = group;
    TrainLoop loop(std::move(job));
    loop.run_steps(steps);
    const std::vector<at::Tensor> state = state_of(loop.job().model);
    if (group.rank() == 0) result = state;
  });
  return result;
}

TEST(ReproducibleRanks, GiveTheSameBits) {
  for (const int64_t accumulation : {1, 3}) {
    std::vector<at::Tensor> first;
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
      for (const int ranks : {1, 2, 4}) {
        SCOPED_TRACE(c10::str(strategy, " on ", ranks, ", accumulation ", accumulation));
        Recipe recipe = reproducible_recipe(strategy);
        recipe.gradient_accumulation_steps = accumulation;
        const std::vector<at::Tensor> state = trained_on(recipe, ranks, 17);
        if (first.empty()) first = state;
        expect_same_bits(state, first);
      }
    }
  }
}

TEST(ReproducibleRanks, GiveTheSameBitsWithConvolutions) {
  const auto first = trained_on(reproducible_recipe("ddp"), 1, 17, job_with_convolutions);
  for (const char* strategy : {"ddp", "zero2", "zero3"}) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(c10::str(strategy, " on ", ranks));
      expect_same_bits(trained_on(reproducible_recipe(strategy), ranks, 17, job_with_convolutions), first);
    }
  }
}

// Without the key, the order of sums depends on the ranks: otherwise, the test above would show nothing.
TEST(ReproducibleRanks, DifferWithoutTheKey) {
  Recipe recipe = reproducible_recipe("ddp");
  recipe.reproducible_ranks = 0;
  const auto alone = trained_on(recipe, 1, 17), four = trained_on(recipe, 4, 17);
  EXPECT_FALSE(at::equal(alone[0], four[0]));
}

FitResult fit_part(const Recipe& recipe, int ranks, int64_t stop_after, bool resume) {
  return fit_on_ranks(recipe, jobs_for(ranks, recipe, job_with_norm), stop_after, resume);
}

// The number of ranks changes in the middle of epochs: 1, then 4, then 2.
TEST(ReproducibleRanks, ResumeOnOtherNumbersOfRanks) {
  for (const char* strategy : {"ddp", "zero3"}) {
    SCOPED_TRACE(strategy);
    Recipe recipe = reproducible_recipe(strategy);
    recipe.epochs = 4;
    const auto expected = trained_on(recipe, 1, 16);
    const TemporaryFolder folder;
    recipe.run_folder = folder.path();
    fit_part(recipe, 1, 7, false);
    fit_part(recipe, 4, 12, true);
    const FitResult last = fit_part(recipe, 2, -1, true);
    EXPECT_EQ(last.steps, 16);
    Job job = job_with_norm(recipe);
    checkpoint::restore_model(job.model, checkpoint::SavedCheckpoint(last.checkpoint).state().model);
    expect_same_bits(state_of(job.model), expected);
  }
}

TEST(ReproducibleRanks, SettingsThatDependOnRanksAreRefused) {
  const auto error = [](const std::function<void(Recipe&)>& change) {
    Recipe recipe = reproducible_recipe("ddp");
    change(recipe);
    return error_of([&] { recipe.validate(); });
  };
  EXPECT_EQ(error([](Recipe&) {}), "");
  EXPECT_THAT(error([](Recipe& recipe) { recipe.batch_size = 18; }), HasSubstr("batch_size = 18 is not a multiple"));
  EXPECT_THAT(error([](Recipe& recipe) { recipe.sync_batch_norm = true; }), HasSubstr("statistics over all ranks"));
  EXPECT_THAT(error([](Recipe& recipe) { recipe.compile = "step"; }), HasSubstr("compile = step"));
  EXPECT_THAT(error([](Recipe& recipe) { recipe.bad_samples = "skip"; }), HasSubstr("bad_samples = skip"));
  EXPECT_THAT(error([](Recipe& recipe) { recipe.activation_dtype = "int8"; }), HasSubstr("rounds at random"));
  EXPECT_THAT(error([](Recipe& recipe) { recipe.target_accuracy = 0.9; }), HasSubstr("follow evaluations"));
  EXPECT_THAT(error([](Recipe& recipe) {
                recipe.data_parallel = "zero2";
                recipe.max_grad_norm = 1;
              }),
              HasSubstr("max_grad_norm adds norms of each rank with zero2"));
  EXPECT_THAT(error_of([] { trained_on(reproducible_recipe("ddp"), 3, 1); }),
              HasSubstr("needs a number of ranks that is a power of two and divides 4, got 3 ranks"));
}

}  // namespace
}  // namespace bellows::train
