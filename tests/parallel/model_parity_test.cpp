#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <optional>

#include "bellows/comm/collectives.h"
#include "bellows/comm/mesh.h"
#include "bellows/comm/world.h"
#include "bellows/core/seed.h"
#include "bellows/models/bert.h"
#include "bellows/models/encoder_decoder.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/gpt.h"
#include "bellows/models/resnet.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/own_processes.h"
#include "tests/support/slow_tests.h"

// GPT-2, BERT and the encoder–decoder with dropout, and a ResNet, with gradient accumulation and clipping: four processes,
// each with its own random numbers, train as one process that computes the four parts of each batch one after the other.
// Batch norm therefore uses the statistics of a part on both sides.
namespace bellows::parallel::testing {
namespace {

constexpr int parity_parts = 4, parity_steps = 20, parity_micro_batches = 2;
constexpr int64_t gpt_words = 37, part_samples = 3;  // of GPT-2 and BERT
constexpr double parity_max_norm = 0.2;

struct ParityTolerance {
  at::ScalarType dtype;
  double losses, parameters;  ///< relative to the largest value
};

// In float64, only the order of sums differs. The others show the rounding of their dtype.
std::vector<ParityTolerance> parity_tolerances() {
  return {{at::kDouble, 1e-9, 1e-9}, {at::kFloat, 1e-5, 1e-5}, {at::kBFloat16, 5e-2, 1e-1}};
}

struct ParityModel {
  const char* name;
  std::function<Model()> make;
  /// The loss of one part of a micro-batch, whose name selects its samples.
  std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& forward, const std::string& name,
                           at::ScalarType dtype)>
      loss;
  std::vector<ParityTolerance> tolerances = parity_tolerances();
  bool adamw = false;  ///< otherwise SGD with momentum
};

ParityModel parity_gpt() {
  return {"gpt",
          [] {
            return models::gpt(
                {.vocab_size = gpt_words, .n_positions = 7, .n_embd = 14, .n_layer = 2, .n_head = 2, .n_inner = 23});
          },
          [](const auto& forward, const std::string& name, at::ScalarType dtype) {
            const at::Tensor words = models::formula_labels(name, part_samples * 6, gpt_words).view({part_samples, 6});
            const at::Tensor logits = forward(words).narrow(1, 0, 5).flatten(0, 1);
            return torch::nn::functional::cross_entropy(dtype == at::kDouble ? logits : logits.to(at::kFloat),
                                                        words.narrow(1, 1, 5).flatten());
          }};
}

ParityModel parity_encoder_decoder() {
  return {"encoder_decoder",
          [] {
            return models::encoder_decoder({.in_features = 3,
                                            .out_features = 2,
                                            .horizon = 3,
                                            .start_steps = 2,
                                            .d_model = 14,
                                            .nhead = 2,
                                            .num_encoder_layers = 1,
                                            .num_decoder_layers = 1,
                                            .dim_feedforward = 23});
          },
          [](const auto& forward, const std::string& name, at::ScalarType dtype) {
            const at::Tensor x = models::formula_uniform("x" + name, {part_samples, 6, 3}).to(dtype);
            const at::Tensor y = models::formula_uniform("y" + name, {part_samples, 3, 2})
                                     .to(dtype == at::kDouble ? at::kDouble : at::kFloat);
            return (forward(x) - y).square().mean();
          }};
}

ParityModel parity_bert() {
  return {"bert",
          [] {
            return models::bert({.head = models::TextHead::masked_lm,
                                 .vocab_size = gpt_words,
                                 .hidden_size = 14,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 2,
                                 .intermediate_size = 23,
                                 .max_position_embeddings = 7});
          },
          [](const auto& forward, const std::string& name, at::ScalarType dtype) {
            const at::Tensor words = models::formula_labels(name, part_samples * 6, gpt_words).view({part_samples, 6});
            const at::Tensor logits = forward(words).flatten(0, 1);
            return torch::nn::functional::cross_entropy(dtype == at::kDouble ? logits : logits.to(at::kFloat),
                                                        words.roll(1, 1).flatten());
          },
          // AdamW divides gradients by their size, so rounding errors of small gradients have a larger effect.
          {{at::kDouble, 1e-9, 1e-8}, {at::kFloat, 1e-4, 1e-3}, {at::kBFloat16, 5e-2, 2e-1}},
          /*adamw=*/true};
}

ParityModel parity_resnet() {
  return {"digits_resnet",
          [] { return models::digits_resnet({.width = 3}); },
          [](const auto& forward, const std::string& name, at::ScalarType dtype) {
            const at::Tensor x = models::formula_uniform("x" + name, {2 * part_samples, 1, 8, 8}).to(dtype);
            const at::Tensor logits = forward(x);
            return torch::nn::functional::cross_entropy(dtype == at::kDouble ? logits : logits.to(at::kFloat),
                                                        models::formula_labels(name, 2 * part_samples, 10));
          },
          // An activation near 0 may pass ReLU on one side only, and batch norm of few samples enlarges differences.
          {{at::kDouble, 1e-9, 1e-8}, {at::kFloat, 1e-3, 1e-3}, {at::kBFloat16, 2e-1, 2e-1}}};
}

struct ParityMethod {
  const char* name;
  int stage = 0;  ///< of ZeRO; 0: DDP
  bool hybrid = false, reshard = true;
  bool always = false;  ///< not only with script/test --slow
};

constexpr ParityMethod parity_methods[] = {{"ddp"},
                                           {"zero1", 1},
                                           {"zero2", 2, false, true, true},
                                           {"zero3", 3},
                                           {"zero3 without resharding", 3, false, false},
                                           {"hybrid zero2", 2, true},
                                           {"hybrid zero3", 3, true, true, true}};

/// Losses of one part, and the parameters after the last step.
struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> parameters;
};

/// One training run: on one process with all parts, or on one rank with its part.
class ParityRun {
 public:
  ParityRun(const ParityModel& kind, at::ScalarType dtype) : kind_(kind), dtype_(dtype), model_(kind.make()) {
    model_.module()->to(dtype);
    models::set_formula_weights(model_);
    if (kind.adamw) {
      // Gradients that are zero without rounding, such as that of a key's bias, must stay small: hence the large eps.
      optimizer_ =
          std::make_shared<optim::AdamW>(distinct_parameters(model_), optim::AdamWOptions{.lr = 0.01, .eps = 1e-3});
    } else {
      optimizer_ = std::make_shared<torch::optim::SGD>(sgd(model_));
    }
  }

  void distribute(const ParityMethod& method, const comm::Group& world, const comm::Mesh& mesh) {
    // Several buckets, whose sizes no number of ranks divides
    if (method.stage < 2) ddp_.emplace(model_, world, DistributedOptions{.bucket_bytes = 3000});
    if (method.stage == 0) return;
    ShardOptions options{.stage = method.stage, .bucket_bytes = 3000, .reshard_after_forward = method.reshard};
    if (method.hybrid) options.replicas = mesh.group("data");
    optimizer_ = zero_optimizer(optimizer_, model_, method.hybrid ? mesh.group("shard") : world, options);
  }

  Trained train(const std::vector<int>& parts) {
    Trained result;
    for (int step = 0; step < parity_steps; ++step) {
      optimizer_->zero_grad();
      for (int micro = 0; micro < parity_micro_batches; ++micro) {
        const auto backward_of_parts = [&] {
          for (const int part : parts)
            result.losses.push_back(backward(step, micro, part, static_cast<int>(parts.size())));
        };
        if (ddp_ && micro + 1 < parity_micro_batches) {
          const auto no_sync = ddp_->no_sync();
          backward_of_parts();
        } else {
          backward_of_parts();
        }
      }
      optim::clip_grad_norm_(model_.parameters(), parity_max_norm);
      optimizer_->step();
    }
    result.parameters = parameters();
    return result;
  }
  std::vector<at::Tensor> parameters() const { return copies(model_.parameters()); }

 private:
  /// The random numbers depend on the step and the part only.
  double backward(int step, int micro, int part, int parts) {
    const int batch = step * parity_micro_batches + micro;
    seed_everything(mix_seed(5, static_cast<uint64_t>(batch), static_cast<uint64_t>(part)));
    const auto forward = [&](const at::Tensor& x) { return ddp_ ? ddp_->forward(x) : model_.forward(x); };
    const at::Tensor loss = kind_.loss(forward, c10::str("batch", batch, "part", part), dtype_);
    (loss / (parity_micro_batches * parts)).backward();
    return loss.item<double>();
  }

  const ParityModel& kind_;
  const at::ScalarType dtype_;
  Model model_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<DistributedDataParallel> ddp_;
};

void expect_parity(const Trained& got, const Trained& alone, int rank, const ParityTolerance& tolerance) {
  ASSERT_EQ(got.losses.size() * parity_parts, alone.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    const double expected = alone.losses[i * parity_parts + static_cast<size_t>(rank)];
    EXPECT_NEAR(got.losses[i], expected, tolerance.losses * std::abs(expected)) << "batch " << i;
  }
  ASSERT_EQ(got.parameters.size(), alone.parameters.size());
  for (size_t i = 0; i < got.parameters.size(); ++i) {
    const at::Tensor expected = alone.parameters[i].to(at::kDouble);
    const double difference = (got.parameters[i].to(at::kDouble) - expected).abs().max().item<double>();
    EXPECT_LE(difference, tolerance.parameters * expected.abs().max().item<double>()) << "parameter " << i;
  }
}

/// Rank 0 trains, and sends the result to the others.
Trained trained_alone(const ParityModel& kind, at::ScalarType dtype, const comm::Group& world) {
  ParityRun run(kind, dtype);
  Trained result;
  if (world.rank() == 0) {
    result = run.train({0, 1, 2, 3});
  } else {
    result = {std::vector<double>(parity_steps * parity_micro_batches * parity_parts), run.parameters()};
  }
  for (at::Tensor& parameter : result.parameters) comm::broadcast(parameter, 0, world);
  const at::Tensor losses = comm::broadcast(torch::tensor(result.losses, at::kDouble), 0, world);
  std::copy_n(losses.const_data_ptr<double>(), result.losses.size(), result.losses.begin());
  return result;
}

/// Params: all – otherwise only the methods that always run
void expect_parity_on_this_rank(const comm::World& world, const ParityModel& kind, bool all) {
  const comm::Mesh mesh(world, {{"data", 2}, {"shard", 2}});
  for (const ParityTolerance& tolerance : kind.tolerances) {
    const Trained alone = trained_alone(kind, tolerance.dtype, world);
    EXPECT_NE(alone.losses.front(), alone.losses.back()) << "nothing was trained";
    for (const ParityMethod& method : parity_methods) {
      if (!all && !method.always) continue;
      SCOPED_TRACE(c10::str(kind.name, ", ", tolerance.dtype, ", ", method.name));
      ParityRun run(kind, tolerance.dtype);
      run.distribute(method, world, mesh);
      expect_parity(run.train({world.rank()}), alone, world.rank(), tolerance);
    }
  }
}

void expect_parity_on_ranks(const std::vector<ParityModel>& kinds, bool all) {
  const auto body = [&](const comm::World& world, const std::string&) {
    for (const ParityModel& kind : kinds) expect_parity_on_this_rank(world, kind, all);
  };
  run_processes(parity_parts, body, {.timeout_s = 600});
}

TEST(ModelsOnRanks, TwentyStepsWithDropoutAreThoseOfOneProcess) {
  expect_parity_on_ranks({parity_gpt(), parity_encoder_decoder()}, /*all=*/true);
}

TEST(ModelsOnRanks, TwentyStepsOfBertWithAdamWAreThoseOfOneProcess) {
  expect_parity_on_ranks({parity_bert()}, slow_tests());
}

TEST(ModelsOnRanks, TwentyStepsOfAResNetAreThoseOfOneProcess) {
  expect_parity_on_ranks({parity_resnet()}, slow_tests());
}

}  // namespace
}  // namespace bellows::parallel::testing
