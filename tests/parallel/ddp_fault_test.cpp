#include <gmock/gmock.h>

#include <chrono>

#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/ddp/same_model.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/ranks.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// A model of two parameters and a buffer, as `change` makes it.
struct Shape {
  std::string name = "weight";
  std::vector<int64_t> sizes = {3, 4};
  at::ScalarType dtype = at::kFloat;
  bool trained = true;
  bool more = true;
  std::vector<int64_t> buffer = {2};
};

Model model_of(const Shape& shape) {
  auto module = std::make_shared<torch::nn::Module>();
  module->register_parameter("first", at::ones({2}));
  if (shape.more) module->register_parameter(shape.name, at::ones(shape.sizes, shape.dtype), shape.trained);
  module->register_buffer("running", at::zeros(shape.buffer));
  return {"net", module, [](const at::Tensor& x) { return x; }};
}

/// What both ranks say when rank 1 of 2 has another model.
std::string difference(const Shape& other) {
  std::vector<std::string> texts(2);
  run_ranks(2, [&](const comm::Group& group) {
    try {
      const DistributedDataParallel ddp(model_of(group.rank() == 1 ? other : Shape{}), group);
    } catch (const c10::ValueError& error) {
      texts[static_cast<size_t>(group.rank())] = user_message(error);
    }
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

TEST(SameModel, TheFirstDifferenceIsNamedOnAllRanks) {
  EXPECT_EQ(
      difference({.sizes = {3, 5}}),
      "the ranks hold different models, \"net\" (group world): tensor 2 is parameter weight Float[3, 5], trained on "
      "rank 1, and parameter weight Float[3, 4], trained on rank 0. Make it with the same options, in the same "
      "order, on every rank.");
  EXPECT_THAT(difference({.name = "bias"}), HasSubstr("tensor 2 is parameter bias Float[3, 4], trained on rank 1"));
  EXPECT_THAT(difference({.dtype = at::kDouble}), HasSubstr("parameter weight Double[3, 4], trained on rank 1"));
  EXPECT_THAT(difference({.trained = false}), HasSubstr("weight Float[3, 4], not trained on rank 1"));
  EXPECT_THAT(difference({.more = false}), HasSubstr("tensor 2 is buffer running Float[2], not trained on rank 1"));
  EXPECT_THAT(difference({.buffer = {3}}), HasSubstr("tensor 3 is buffer running Float[3], not trained on rank 1"));
  EXPECT_EQ(difference({}), "");
}

// A rank of another build sends lines with its own versions.
TEST(DistributedFaults, OtherVersionsAreNamed) {
  const auto messages = messages_of_ranks(2, [](const comm::Group& group) {
    if (group.rank() == 0) return check_same_options("DDP", {"option 1"}, group);
    check_same_lines("the ranks have different options or versions for DDP", "line",
                     {"Bellows 0.0.1", "libtorch 1.13.0", "option 1"}, group, "Run the same build.");
  });
  for (const std::string& message : messages)
    EXPECT_THAT(message, ContainsRegex("different options or versions for DDP \\(group world\\): line 1 is Bellows "
                                       "0\\.0\\.1 on rank 1, and Bellows [0-9.]+[a-z0-9.+-]* on rank 0"));
}

TEST(DistributedFaults, ThereHasToBeSomethingToTrain) {
  run_ranks(1, [](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    EXPECT_THROW(DistributedDataParallel(model, group, {.bucket_bytes = 0}), c10::ValueError);
    for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
    EXPECT_THROW(DistributedDataParallel(model, group), c10::ValueError);
  });
}

TEST(DistributedFaults, BucketsOfAnotherModelAreRefused) {
  run_ranks(2, [](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group);
    const at::Tensor own = ddp.state().at(0).second;
    ddp.restore({{"buckets", own}});
    at::Tensor twice = own.clone(), gap = own.clone();
    twice[1].copy_(twice[0]);
    gap.select(1, 0).add_(1);
    for (const at::Tensor& wrong : {twice, gap, own.slice(0, 1), own.to(at::kInt), own - 9})
      EXPECT_THROW(ddp.restore({{"buckets", wrong}}), c10::ValueError) << wrong;
  });
  run_ranks(1, [](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group);
    EXPECT_TRUE(ddp.state().empty());
    ddp.restore({{"buckets", at::zeros({1})}});
  });
}

/// Rank 1's model breaks down in its third forward, while the others wait in backward for its gradients.
std::vector<std::string> errors_when_rank_1_throws(int ranks) {
  return messages_of_ranks(ranks, [](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group, {.bucket_bytes = 900, .first_bucket_bytes = 120});
    for (int step = 0; step < 4; ++step) {
      TORCH_CHECK_VALUE(group.rank() != 1 || step < 2, "a bad sample");
      loss_of(ddp.forward(numbers({4, 6}, 1))).backward();
    }
  });
}

TEST(DistributedFaults, ARankThatThrowsIsNamedByTheOthersBackward) {
  const auto start = std::chrono::steady_clock::now();
  const auto texts = errors_when_rank_1_throws(3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_EQ(texts[1], "a bad sample");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(texts[static_cast<size_t>(rank)],
                ContainsRegex("^#[0-9]+ all_(reduce Double|gather Long)\\[[0-9]+\\] failed on rank " +
                              std::to_string(rank) + ", group world/gradients: .*"));
  }
}

enum class Phase { forward, loss, backward, step };

/// A gradient that cannot be computed.
void throw_in_backward(const at::Tensor& y) {
  y.register_hook([](const at::Tensor&) { throw std::runtime_error("no gradient"); });
}

/// What each rank's later steps throw ("" if they do not), and its weights, when the third of six steps throws.
struct Later {
  std::string error;
  std::vector<at::Tensor> weights;
};
std::vector<Later> after_a_throw(Phase phase, bool on_both) {
  std::vector<Later> result(2);
  run_ranks(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group);
    auto optimizer = sgd(model);
    Later& later = result[static_cast<size_t>(group.rank())];
    const bool throws = on_both || group.rank() == 1;
    const auto fail = [&](int step, Phase now) {
      if (throws && step == 2 && now == phase) throw std::runtime_error("once");
    };
    for (int step = 0; step < 6 && later.error.empty(); ++step) {
      try {
        optimizer.zero_grad();
        fail(step, Phase::forward);
        const at::Tensor y = ddp.forward(numbers({4, 6}, 20 + static_cast<uint64_t>(group.rank())));
        fail(step, Phase::loss);
        const at::Tensor loss = loss_of(y);
        if (throws && step == 2 && phase == Phase::backward) throw_in_backward(y);
        loss.backward();
        fail(step, Phase::step);
        optimizer.step();
      } catch (const std::exception& error) {
        if (step > 2 || !throws) later.error = user_message(error);
      }
    }
    later.weights = copies(model.parameters());
  });
  return result;
}

TEST(DistributedFaults, RanksThatThrewTogetherStayTogetherOrSaySo) {
  for (const Phase phase : {Phase::forward, Phase::loss, Phase::backward, Phase::step}) {
    SCOPED_TRACE(static_cast<int>(phase));
    const auto ranks = after_a_throw(phase, true);
    if (phase == Phase::backward) {
      for (const Later& rank : ranks) EXPECT_THAT(rank.error, HasSubstr("an exception ended the last backward pass"));
    } else {
      EXPECT_EQ(ranks[0].error + ranks[1].error, "");
    }
    expect_equal(ranks[0].weights, ranks[1].weights);
  }
}

TEST(DistributedFaults, AStepThatOneRankLeavesOutIsNoticedByBoth) {
  const auto ranks = after_a_throw(Phase::step, false);
  for (const Later& rank : ranks) {
    EXPECT_THAT(rank.error, HasSubstr("the ranks hold different weights: parameter \"first_weight\" on rank 1"));
  }
}

TEST(DistributedFaults, ARankThatThrewBeforeBackwardExchangesAgain) {
  for (const Phase phase : {Phase::forward, Phase::loss}) {
    const auto ranks = after_a_throw(phase, false);
    EXPECT_EQ(ranks[1].error, "") << "it made one step less";
    EXPECT_NE(ranks[0].error, "") << "nobody is there for its last step";
    expect_equal(ranks[0].weights, ranks[1].weights);
  }
}

/// Rank 0 alone swaps weights for an evaluation and puts them back.
TEST(DistributedFaults, WeightsThatWerePutBackAreNoDivergence) {
  run_ranks(2, [&](const comm::Group& group) {
    const auto [model, module] = make_model<Layers>();
    const DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 3; ++step) {
      if (group.rank() == 0) {
        const at::NoGradGuard no_grad;
        for (at::Tensor& parameter : model.parameters()) {
          const at::Tensor before = parameter.clone();
          parameter.zero_();
          parameter.copy_(before);
        }
      }
      EXPECT_NO_THROW(loss_of(ddp.forward(numbers({4, 6}, 1))).backward());
    }
  });
}

}  // namespace
}  // namespace bellows::parallel::testing
