#pragma once

#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <numeric>
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

// GPT-2, BERT and the encoder–decoder with dropout, and a ResNet, with gradient accumulation and clipping: several
// processes, each with its own random numbers, train as one process that computes the parts of each batch, one per rank, one
// after the other. Batch norm therefore uses the statistics of a part on both sides. The device of the world determines
// the backend: Gloo on the CPU, or NCCL.
namespace bellows::parallel::testing {

constexpr int parity_steps = 20, parity_micro_batches = 2;
constexpr int64_t gpt_words = 37, part_samples = 3;  // of GPT-2 and BERT
constexpr double parity_max_norm = 0.2;

struct ParityTolerance {
  at::ScalarType dtype;
  double losses, parameters;  ///< relative to the largest value
};

// In float64, only the order of sums differs. The others show the rounding of their dtype.
inline std::vector<ParityTolerance> parity_tolerances() {
  return {{at::kDouble, 1e-9, 1e-9}, {at::kFloat, 1e-5, 1e-5}, {at::kBFloat16, 5e-2, 1e-1}};
}

struct ParityModel {
  const char* name;
  std::function<Model()> make;
  /// The loss of one part of a micro-batch, whose name selects its samples.
  std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& forward, const std::string& name,
                           const at::TensorOptions& options)>
      loss;
  std::vector<ParityTolerance> tolerances = parity_tolerances();
  bool adamw = false;  ///< otherwise SGD with momentum
};

/// Numbers of tokens, the inputs of GPT-2 and BERT: [part_samples, 6].
inline at::Tensor parity_tokens(const std::string& name, const c10::Device& device) {
  return models::formula_labels(name, part_samples * 6, gpt_words).view({part_samples, 6}).to(device);
}

inline ParityModel parity_gpt() {
  return {"gpt",
          [] {
            return models::gpt(
                {.vocab_size = gpt_words, .n_positions = 7, .n_embd = 14, .n_layer = 2, .n_head = 2, .n_inner = 23});
          },
          [](const auto& forward, const std::string& name, const at::TensorOptions& options) {
            const at::Tensor words = parity_tokens(name, options.device());
            const at::Tensor logits = forward(words).narrow(1, 0, 5).flatten(0, 1);
            return torch::nn::functional::cross_entropy(options.dtype() == at::kDouble ? logits : logits.to(at::kFloat),
                                                        words.narrow(1, 1, 5).flatten());
          }};
}

inline ParityModel parity_encoder_decoder() {
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
          [](const auto& forward, const std::string& name, const at::TensorOptions& options) {
            const at::Tensor x = models::formula_uniform("x" + name, {part_samples, 6, 3}).to(options);
            const at::Tensor y = models::formula_uniform("y" + name, {part_samples, 3, 2})
                                     .to(options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat));
            return (forward(x) - y).square().mean();
          }};
}

inline ParityModel parity_bert() {
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
          [](const auto& forward, const std::string& name, const at::TensorOptions& options) {
            const at::Tensor words = parity_tokens(name, options.device());
            const at::Tensor logits = forward(words).flatten(0, 1);
            return torch::nn::functional::cross_entropy(options.dtype() == at::kDouble ? logits : logits.to(at::kFloat),
                                                        words.roll(1, 1).flatten());
          },
          // AdamW divides gradients by their size, so rounding errors of small gradients have a larger effect.
          {{at::kDouble, 1e-9, 1e-8}, {at::kFloat, 1e-4, 1e-3}, {at::kBFloat16, 5e-2, 2e-1}},
          /*adamw=*/true};
}

inline ParityModel parity_resnet() {
  return {"digits_resnet",
          [] { return models::digits_resnet({.width = 3}); },
          [](const auto& forward, const std::string& name, const at::TensorOptions& options) {
            const at::Tensor x = models::formula_uniform("x" + name, {2 * part_samples, 1, 8, 8}).to(options);
            const at::Tensor logits = forward(x);
            return torch::nn::functional::cross_entropy(
                options.dtype() == at::kDouble ? logits : logits.to(at::kFloat),
                models::formula_labels(name, 2 * part_samples, 10).to(x.device()));
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

inline constexpr ParityMethod parity_methods[] = {{"ddp"},
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
  ParityRun(const ParityModel& kind, const at::TensorOptions& options)
      : kind_(kind), options_(options), model_(kind.make()) {
    model_.module()->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
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
    const at::Tensor loss = kind_.loss(forward, c10::str("batch", batch, "part", part), options_);
    (loss / (parity_micro_batches * parts)).backward();
    return loss.item<double>();
  }

  const ParityModel& kind_;
  const at::TensorOptions options_;
  Model model_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<DistributedDataParallel> ddp_;
};

inline void expect_parity(const Trained& got, const Trained& alone, const comm::World& world,
                          const ParityTolerance& tolerance) {
  const auto ranks = static_cast<size_t>(world.size()), rank = static_cast<size_t>(world.rank());
  ASSERT_EQ(got.losses.size() * ranks, alone.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    const double expected = alone.losses[i * ranks + rank];
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
inline Trained trained_alone(const ParityModel& kind, const at::TensorOptions& options, const comm::World& world) {
  ParityRun run(kind, options);
  std::vector<int> parts(static_cast<size_t>(world.size()));
  std::iota(parts.begin(), parts.end(), 0);
  Trained result;
  if (world.rank() == 0) {
    result = run.train(parts);
  } else {
    result = {std::vector<double>(parity_steps * parity_micro_batches * parts.size()), run.parameters()};
  }
  for (at::Tensor& parameter : result.parameters) comm::broadcast(parameter, 0, world);
  const at::Tensor losses = comm::broadcast(torch::tensor(result.losses, at::kDouble), 0, world);
  std::copy_n(losses.const_data_ptr<double>(), result.losses.size(), result.losses.begin());
  return result;
}

/// Params: all – otherwise only the methods that always run
inline void expect_parity_on_this_rank(const comm::World& world, const ParityModel& kind, bool all) {
  const int copies = world.size() % 2 == 0 ? 2 : 1;
  const comm::Mesh mesh(world, {{"data", copies}, {"shard", world.size() / copies}});
  for (const ParityTolerance& tolerance : kind.tolerances) {
    const at::TensorOptions options = at::TensorOptions(world.device()).dtype(tolerance.dtype);
    const Trained alone = trained_alone(kind, options, world);
    EXPECT_NE(alone.losses.front(), alone.losses.back()) << "nothing was trained";
    for (const ParityMethod& method : parity_methods) {
      if (!all && !method.always) continue;
      SCOPED_TRACE(c10::str(kind.name, ", ", tolerance.dtype, ", ", method.name));
      ParityRun run(kind, options);
      run.distribute(method, world, mesh);
      expect_parity(run.train({world.rank()}), alone, world, tolerance);
    }
  }
}

}  // namespace bellows::parallel::testing
