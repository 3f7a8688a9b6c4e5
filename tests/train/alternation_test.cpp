// A job with an alternate job, against a loop by hand, on ranks, resumed, and in a search for an architecture.
#include "bellows/train/alternation.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/ranks_jobs.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

/// The operation of a layer is the mean of four, weighted by softmax(alpha), as in DARTS.
struct SearchNetImpl : torch::nn::Module {
  SearchNetImpl() { to(at::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) {
    const at::Tensor p = alpha.softmax(0);
    return linear(p[0] * x + p[1] * x.relu() + p[2] * x.abs() + p[3] * torch::zeros_like(x));
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 3));
  at::Tensor alpha = register_parameter("alpha", torch::zeros(4));
};
TORCH_MODULE(SearchNet);
constexpr int64_t right_operation = 2;

/// The class is the largest of three absolute values, so a linear layer needs the operation abs before it.
data::Dataset search_points(int64_t n, uint64_t seed, int64_t batch) {
  at::manual_seed(seed);
  const at::Tensor x = torch::randn({n, 8}, at::kDouble);
  const data::Dataset all(data::from_tensors({{"image", x}, {"label", x.slice(1, 0, 3).abs().argmax(1)}}));
  return all.batch(batch).threads(0).shuffle(seed);
}

Recipe search_recipe() {
  Recipe recipe = ranks_recipe();
  recipe.epochs = 3;
  recipe.optimizer_impl = "loop";
  return recipe;
}

/// 8 batches of weights and 5 of the architecture per epoch; both end with a smaller batch.
Job search_job(const Recipe& recipe) {
  seed_everything(3);
  const SearchNet net;
  const Model model = Model::of(net, "net");
  const data::Dataset train = search_points(points, 6, recipe.batch_size);
  Job job{recipe,
          model,
          {std::make_shared<torch::optim::SGD>(net->linear->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9))},
          cross_entropy_loss(model),
          train,
          train};
  job.alternate = std::make_shared<Job>(
      Job{recipe,
          model,
          {std::make_shared<torch::optim::Adam>(std::vector<at::Tensor>{net->alpha}, torch::optim::AdamOptions(0.1))},
          cross_entropy_loss(model),
          search_points(37, 8, 8),
          {}});
  job.alternate->recipe.batch_size = 8;
  return job;
}

/// Returns the batches of all epochs, one after the other.
class Batches {
 public:
  explicit Batches(const data::Dataset& data) : loader_(data.loader()) { loader_.start(0); }
  data::Batch next() {
    std::optional<data::Batch> batch = loader_.next();
    if (batch) return *batch;
    loader_.start(++epoch_);
    return *loader_.next();
  }

 private:
  data::Loader loader_;
  int64_t epoch_ = 0;
};

/// The same steps by hand.
std::vector<at::Tensor> search_by_hand(const Recipe& recipe, int64_t steps) {
  const Job job = search_job(recipe);
  Batches weights(job.train), architecture(job.alternate->train);
  const auto step = [&](torch::optim::Optimizer& optimizer, const data::Batch& batch) {
    for (const at::Tensor& parameter : job.model.parameters()) parameter.mutable_grad().reset();
    at::cross_entropy_loss(job.model.forward(batch["image"]), batch["label"]).backward();
    optimizer.step();
  };
  for (int64_t i = 0; i < steps; ++i) {
    step(*job.alternate->optimizers.front(), architecture.next());
    step(*job.optimizers.front(), weights.next());
  }
  return copies_of(job.model);
}

std::string alternation_error(const std::function<void(Job&)>& change) {
  Job job = search_job(search_recipe());
  change(job);
  return error_of([&] { TrainLoop loop(std::move(job)); });
}

}  // namespace

TEST(Alternation, IsTheLoopByHandBitForBit) {
  TrainLoop loop(search_job(search_recipe()));
  loop.run_steps(20);
  expect_same_bits(copies_of(loop.job().model), search_by_hand(search_recipe(), 20));
  EXPECT_EQ(loop.step_count(), 20);
  ASSERT_TRUE(loop.alternate());
  EXPECT_EQ(loop.alternate()->step_count(), 20);
  EXPECT_EQ(loop.alternate()->epoch(), 4);
  for (const at::Tensor& parameter : loop.job().model.parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(Alternation, RanksTrainAsOneProcessDoes) {
  TrainLoop alone(search_job(search_recipe()));
  alone.run_steps(20);
  const std::vector<at::Tensor> expected = copies_of(alone.job().model);
  for (const int ranks : {2, 3}) {
    std::vector<Job> jobs = jobs_for(ranks, search_recipe(), search_job);
    std::vector<std::vector<at::Tensor>> weights(jobs.size());
    parallel::testing::run_ranks(ranks, [&](const comm::Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      jobs[rank].ranks = group;
      TrainLoop loop(std::move(jobs[rank]));
      loop.run_steps(20);
      weights[rank] = copies_of(loop.job().model);
    });
    for (const auto& own : weights) {
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::allclose(own[i], expected[i], 1e-9, 1e-12)) << ranks << " ranks, tensor " << i;
    }
  }
}

TEST(Alternation, FindsTheRightOperation) {
  Recipe recipe = search_recipe();
  recipe.epochs = 10;
  const Job job = search_job(recipe);
  const at::Tensor alpha = job.model.named_parameters().front().second;
  ASSERT_EQ(alpha.numel(), 4);
  Trainer(recipe).fit(job);
  const at::Tensor share = alpha.detach().softmax(0);
  EXPECT_EQ(share.argmax().item<int64_t>(), right_operation) << share;
  EXPECT_GT(share[right_operation].item<double>(), 0.5) << share;
}

TEST(Alternation, ResumedRunsAreBitIdentical) {
  for (const int ranks : {1, 2}) {
    std::vector<std::vector<at::Tensor>> weights;
    for (const int64_t stop_after : {-1, 11}) {
      const TemporaryFolder folder;
      Recipe recipe = search_recipe();
      recipe.run_folder = folder.path() + "/run";
      std::vector<Job> jobs = jobs_for(ranks, recipe, search_job);
      Model model = jobs.front().model;
      const FitResult first = fit_on_ranks(recipe, std::move(jobs), stop_after, false);
      EXPECT_EQ(first.stopped, stop_after > 0);
      if (first.stopped) {
        jobs = jobs_for(ranks, recipe, search_job);
        model = jobs.front().model;
        EXPECT_EQ(fit_on_ranks(recipe, std::move(jobs), -1, true).steps, 24);
      }
      weights.push_back(copies_of(model));
    }
    expect_same_bits(weights[1], weights[0]);
  }
}

TEST(Alternation, JobsThatCannotAlternateAreRefused) {
  EXPECT_THAT(
      alternation_error([](Job& job) { job.alternate->optimizers = job.optimizers; }),
      HasSubstr("train: a parameter of shape [3, 8] is in the optimizers of both jobs that alternate. Pass each "
                "parameter to one of them."));
  EXPECT_THAT(alternation_error([](Job& job) {
                job.alternate->optimizers = {std::make_shared<torch::optim::SGD>(
                    std::vector<at::Tensor>{at::zeros({5}).requires_grad_()}, torch::optim::SGDOptions(0.1))};
              }),
              HasSubstr("train: the alternate job trains a parameter of shape [5], which the model does not contain"));
  EXPECT_THAT(alternation_error([](Job& job) { job.alternate->alternate = std::make_shared<Job>(job); }),
              HasSubstr("train: the alternate job has an alternate job, too"));
  const std::vector<std::string> refused = {
      "data_parallel=zero2", "mesh=data: 1, shard: 2",     "compile=forward",
      "quantize=int8",       "optimizer_in_backward=true", "reproducible_ranks=2"};
  for (const std::string& setting : refused) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_THAT(alternation_error([&](Job& job) { job.recipe.set(setting); }),
                HasSubstr("train: jobs that alternate do not support " + key + " = "));
    EXPECT_THAT(alternation_error([&](Job& job) { job.alternate->recipe.set(setting); }), HasSubstr(key + " = "));
  }
  for (const std::string setting : {"sample_stats=true", "ema_decay=0.9"}) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_THAT(alternation_error([&](Job& job) { job.alternate->recipe.set(setting); }),
                HasSubstr("train: the alternate job does not support " + key + " = "));
  }
  EXPECT_THAT(alternation_error([](Job& job) {
                job.elastic = std::shared_ptr<comm::ElasticWorld>(std::shared_ptr<void>(),
                                                                  reinterpret_cast<comm::ElasticWorld*>(&job));
              }),
              HasSubstr("train: ranks of jobs that alternate cannot be replaced"));
}

}  // namespace bellows::train
