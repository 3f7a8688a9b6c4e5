#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "bellows/models/blocks.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "tests/parallel/tensor/tensor_support.h"
#include "tests/support/errors.h"

// Models of your own, plans, cost and errors.
namespace bellows::parallel::testing::tensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Layers of torch::nn: x [N, 6] → y [N, 3].
struct OwnNet final : torch::nn::Module {
  OwnNet() {
    up = register_module("up", torch::nn::Linear(6, 8));
    down = register_module("down", torch::nn::Linear(8, 5));
    last = register_module("last", torch::nn::Linear(5, 3));
    drop = register_module("drop", torch::nn::Dropout(0.3));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor factor = scaled ? down->weight.sum() : at::ones({});
    if (joined) factor = at::cat({down->weight, down->weight}).sum();
    at::Tensor y = down->forward(drop->forward(at::relu(up->forward(x)))) * factor;
    if (fails) throw std::runtime_error("a rank failed");
    if (skips_last) return y;
    return last->forward(at::tanh(y));
  }
  torch::nn::Linear up{nullptr}, down{nullptr}, last{nullptr};
  torch::nn::Dropout drop{nullptr};
  bool scaled = false, joined = false, fails = false, skips_last = false;
};

const TensorPlan own_plan = {{"up", column}, {"down", row}};

struct OwnModel {
  Model model;
  std::shared_ptr<OwnNet> net;
};

OwnModel own_net() {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  auto net = std::make_shared<OwnNet>();
  return {with_weights(Model::of(net, "own")), net};
}

TEST(TensorLayers, OfTorchNnWithTwoAndThreeDims) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{4, 6}, std::vector<int64_t>{2, 4, 6}}) {
    const OwnModel own = own_net();
    const Model& alone = own.model;
    at::manual_seed(5);
    const at::Tensor expected = alone.forward(drawn(sizes, 1));
    expected.square().sum().backward();
    run_ranks(2, [&](const comm::Group& group) {
      const OwnModel own_rank = own_net();
      const Model& model = own_rank.model;
      const std::shared_ptr<OwnNet>& divided = own_rank.net;
      const TensorParallel tensor =
          parallelize(model, group, own_plan, {.generator = at::detail::createCPUGenerator(5)});
      const at::Tensor y = tensor.forward(drawn(sizes, 1));
      EXPECT_TRUE(at::allclose(y, expected, 1e-12, 1e-12));
      y.square().sum().backward();
      expect_close(
          gathered_gradients(tensor),
          [&] {
            NamedTensors gradients;
            for (const auto& [name, parameter] : alone.named_parameters())
              gradients.emplace_back(name, parameter.grad());
            return gradients;
          }(),
          1e-12);
      EXPECT_EQ(divided->up->weight.sizes(), at::IntArrayRef({4, 6}));
      EXPECT_EQ(divided->down->weight.sizes(), at::IntArrayRef({5, 4}));
      EXPECT_EQ(divided->down->bias.sizes(), at::IntArrayRef({5}));
    });
  }
}

TEST(TensorLayers, RowLayerOfCompleteInput) {
  const OwnModel own = own_net();
  const Model& alone = own.model;
  alone.eval();
  const at::Tensor expected = alone.forward(drawn({4, 6}, 1));
  expected.sum().backward();
  const at::Tensor gradient = own.net->up->weight.grad();
  run_ranks(2, [&](const comm::Group& group) {
    const OwnModel own_rank = own_net();
    const Model& model = own_rank.model;
    const std::shared_ptr<OwnNet>& divided = own_rank.net;
    model.eval();
    const TensorParallel tensor = parallelize(model, group, {{"down", row}});
    const at::Tensor y = tensor.forward(drawn({4, 6}, 1));
    EXPECT_TRUE(at::allclose(y, expected, 1e-12, 1e-12));
    y.sum().backward();
    EXPECT_TRUE(at::allclose(divided->up->weight.grad(), gradient, 1e-12, 1e-12));
  });
}

/// Checkpoints a column and a row layer, and refers weakly to the column layer's input of each run.
struct CheckpointedPair final : torch::nn::Module {
  CheckpointedPair() {
    up = register_module("up", torch::nn::Linear(6, 8));
    down = register_module("down", torch::nn::Linear(8, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto block = [this](const at::Tensor& input) {
      const at::Tensor twice = input * 2;
      inputs.emplace_back(twice.getIntrusivePtr());
      return down->forward(at::relu(up->forward(twice)));
    };
    return recompute::checkpoint(block, x);
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> inputs;
};

TEST(TensorLayers, SecondRunsLeaveNoTensorsBehind) {
  run_ranks(2, [&](const comm::Group& group) {
    const auto net = std::make_shared<CheckpointedPair>();
    const TensorParallel tensor = parallelize(with_weights(Model::of(net, "pair")), group, own_plan);
    const auto scope = tensor.scope();
    tensor.forward(drawn({4, 6}, 1).requires_grad_()).sum().backward();
    EXPECT_EQ(net->inputs.size(), 2u) << "of both runs";
    for (const auto& input : net->inputs) EXPECT_TRUE(input.expired());
  });
}

TEST(TensorLayers, ParametersAndBytesFollowTheFormula) {
  const Task task = bert_task();
  for (const int64_t ranks : {2, 4}) {
    run_ranks(static_cast<int>(ranks), [&](const comm::Group& group) {
      const Model model = make_on_rank(task, {});
      const TensorParallel tensor = parallelize(model, group, tensor_plan(model));
      const int64_t h = 16, inner = 24, rank = group.rank();
      const int64_t rows = 37 * (rank + 1) / ranks - 37 * rank / ranks;
      const int64_t layer = (4 * h * h + 3 * h + 2 * h * inner + inner) / ranks + 6 * h;
      const int64_t whole = 8 * h + 2 * h + 2 * h + h * h + h + 2 * h;  // positions, types, norms, the head's layer
      int64_t held = 0;
      for (const at::Tensor& parameter : distinct_parameters(model)) held += parameter.numel();
      EXPECT_EQ(held, 2 * layer + whole + rows * (h + 1));
      const auto scope = tensor.scope();
      const auto sent = [&] { return comm::traffic(group)["all_reduce"].bytes; };
      task.loss(tensor.forward(task.batch(0)), 0).backward();
      const int64_t before = sent(), activation = 18 * h * 8;
      task.loss(tensor.forward(task.batch(0)), 0).backward();
      // 4 per layer, those of the embedding and of the output layer, and 4 numbers per row of the smoothed loss
      EXPECT_EQ(sent() - before, 2 * 4 * activation + 2 * activation + 4 * 18 * 8);
    });
  }
}

TEST(TensorLayers, LogitsAreGatheredForPredictions) {
  const Model alone = with_weights(gpt_task().make(0, false));
  const at::Tensor expected = alone.forward(gpt_task().batch(0));
  run_ranks(4, [&](const comm::Group& group) {
    const Model model = make_on_rank(gpt_task(), {});
    const TensorParallel tensor = parallelize(model, group, tensor_plan(model));
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(tensor.complete_logits(tensor.forward(gpt_task().batch(0))), expected, 1e-9, 1e-9));
    EXPECT_FALSE(tensor.complete_logits(at::Tensor()).defined());
  });
}

TEST(TensorLayers, CompleteVocabulary) {
  const Model alone = with_weights(gpt_task().make(0, false));
  const at::Tensor expected = alone.forward(gpt_task().batch(0));
  run_ranks(2, [&](const comm::Group& group) {
    const Model model = make_on_rank(gpt_task(), {});
    const TensorParallel tensor = parallelize(model, group, tensor_plan(model, /*divide_vocabulary=*/false));
    EXPECT_TRUE(at::allclose(tensor.forward(gpt_task().batch(0)), expected, 1e-9, 1e-9));
    EXPECT_TRUE(tensor.complete_logits(expected).is_same(expected));
    EXPECT_THAT(message_of([&] { tensor.gather_logits(expected); }), HasSubstr("divides no vocabulary"));
  });
}

TEST(TensorMisuse, Plans) {
  const auto message = [](const TensorPlan& plan, int ranks = 2) {
    const OwnModel own = own_net();
    const Model& model = own.model;
    return message_of([&] { find_cuts(model, plan, ranks); });
  };
  EXPECT_THAT(message({{"dwn", row}}), AllOf(HasSubstr("the pattern \"dwn\" of the plan matches no module"),
                                             HasSubstr("Did you mean \"down\"?")));
  EXPECT_THAT(message({{"up", column}, {"*.weight", row}}), HasSubstr("two patterns of the plan match the parameter"));
  EXPECT_THAT(message({{"up", column}}, 3), HasSubstr("which 3 ranks and 1 fused part(s) do not divide"));
  EXPECT_THAT(message({{"last", vocabulary}}, 4), HasSubstr("a vocabulary of at least 4 rows"));
  const OwnModel own = own_net();
  const Model& model = own.model;
  EXPECT_THAT(message_of([&] { tensor_plan(model); }), HasSubstr("not those of bert, distilbert, gpt"));
}

TEST(TensorMisuse, RanksThatDifferAreNamedBeforeTheFirstStep) {
  const auto plans = messages_of_ranks(2, [](const comm::Group& group) {
    const OwnModel own = own_net();
    const Model& model = own.model;
    parallelize(model, group, group.rank() == 0 ? own_plan : TensorPlan{{"up", column}, {"down", column}});
  });
  for (const std::string& message : plans)
    EXPECT_THAT(message, AllOf(HasSubstr("different options or versions for tensor parallelism"),
                               HasSubstr("\"down\": column on rank 1")));
  const auto different = messages_of_ranks(2, [](const comm::Group& group) {
    const Model model = make_on_rank(group.rank() == 0 ? gpt_task() : bert_task(), {});
    parallelize(model, group, {{"*", column}});
  });
  for (const std::string& message : different) EXPECT_THAT(message, HasSubstr("the ranks hold different models"));
}

TEST(TensorMisuse, DifferentBatchesAndMasks) {
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const OwnModel own = own_net();
         const Model& model = own.model;
         const TensorParallel tensor =
             parallelize(model, group, own_plan, {.generator = at::detail::createCPUGenerator(5)});
         tensor.forward(drawn({4, 6}, static_cast<uint64_t>(group.rank())));
       }))
    EXPECT_THAT(message, HasSubstr("the ranks read different batches"));
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const OwnModel own = own_net();
         const Model& model = own.model;
         const uint64_t seed = 5 + static_cast<uint64_t>(group.rank());
         const TensorParallel tensor =
             parallelize(model, group, own_plan, {.generator = at::detail::createCPUGenerator(seed)});
         tensor.forward(drawn({4, 6}, 1));
       }))
    EXPECT_THAT(message, HasSubstr("random generators have different states"));
}

TEST(TensorMisuse, UnsupportedUseOfADividedWeight) {
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const OwnModel own = own_net();
         const Model& model = own.model;
         own.net->scaled = true;
         model.eval();
         parallelize(model, group, own_plan).forward(drawn({4, 6}, 1));
       }))
    EXPECT_THAT(message, HasSubstr("aten::sum reads the parameter \"down.weight\""));
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const OwnModel own = own_net();
         own.net->joined = true;
         own.model.eval();
         parallelize(own.model, group, own_plan).forward(drawn({4, 6}, 1));
       }))
    EXPECT_THAT(message, HasSubstr("aten::cat reads the parameter \"down.weight\""));
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const Model model = make_on_rank(gpt_task(), {});
         parallelize(model, group, {{"*attn.c_attn", column.stored_transposed().fused(3)}, {"*.wpe", vocabulary}})
             .forward(gpt_task().batch(0));
       }))
    EXPECT_THAT(message, HasSubstr("aten::add reads the parameter \"transformer.wpe.weight\""));
}

TEST(TensorMisuse, UnusedDividedWeightIsReportedInEachForward) {
  run_ranks(2, [](const comm::Group& group) {
    const OwnModel own = own_net();
    own.net->skips_last = true;
    own.model.eval();
    const TensorParallel tensor = parallelize(own.model, group, {{"up", column}, {"down", row}, {"last", vocabulary}});
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(message_of([&] {
                    tensor.forward(drawn({4, 6}, 1));
                  }),
                  HasSubstr("has read the divided parameter \"last.weight\""));
  });
}

TEST(TensorMisuse, HeadsThatDoNotDivide) {
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const Model model = models::gpt({.vocab_size = 8, .n_positions = 4, .n_embd = 12, .n_layer = 1, .n_head = 3});
         parallelize(model, group, tensor_plan(model)).forward(drawn_ids(8, {1, 4}, 1));
       }))
    EXPECT_THAT(message, HasSubstr("the number of ranks must divide the number of heads"));
}

TEST(TensorMisuse, AnErrorOnOneRankEndsAllRanks) {
  std::vector<std::string> result(2);
  EXPECT_THROW(run_ranks(
                   2,
                   [&](const comm::Group& group) {
                     const OwnModel own = own_net();
                     const Model& model = own.model;
                     model.eval();
                     const TensorParallel tensor = parallelize(model, group, own_plan);
                     tensor.forward(drawn({4, 6}, 1));
                     own.net->fails = group.rank() == 1;
                     const std::string message = message_of([&] {
                       for (int step = 0; step < 3; ++step) tensor.forward(drawn({4, 6}, 1)).sum().backward();
                     });
                     result[static_cast<size_t>(group.rank())] = message;
                   },
                   10),
               std::runtime_error);
  EXPECT_NE(result[0], "no error");
  EXPECT_THAT(result[0], HasSubstr("rank"));
}

TEST(TensorMisuse, SequenceParallelism) {
  for (const std::string& message : messages_of_ranks(2, [](const comm::Group& group) {
         const Model model = make_on_rank(series_task(), {});
         parallelize(model, group, tensor_plan(model)).sequence_blocks(4);
       }))
    EXPECT_THAT(message, HasSubstr("cross-attention"));
  for (const bool fused : {false, true}) {
    for (const std::string& message : messages_of_ranks(2, [&](const comm::Group& group) {
           const Model model = make_on_rank(gpt_task(), {.fused = fused});
           const TensorParallel tensor = parallelize(model, group, tensor_plan(model));
           models::run_blocks_by(model, tensor.sequence_blocks(2));
           tensor.forward(drawn_ids(37, {2, fused ? 6 : 5}, 1));
         }))
      EXPECT_THAT(message, HasSubstr(fused ? "does not support sequence parallelism" : "do not divide"));
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::tensor
