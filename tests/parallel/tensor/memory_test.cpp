#include <gmock/gmock.h>

#include <chrono>
#include <thread>
#include <utility>

#include "bellows/models/blocks.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/partition.h"
#include "bellows/tap/allocator.h"
#include "tests/parallel/activation_counter.h"
#include "tests/parallel/own_processes.h"
#include "tests/parallel/tensor/tensor_support.h"

// The activations of a transformer layer, compared with Megatron-LM's formula (arXiv:2205.05198, table 2). It counts the
// bytes of 16-bit activations for a sequence of s tokens, b samples, width h and t ranks: s·b·h (10 + 24/t), and with
// sequence parallelism s·b·h · 34/t. These are 4 + 12/t and 16/t elements, and two dropout masks of one byte. The part
// 5·a·s²·b/t of the attention weights is left out: libtorch's attention without dropout does not store them, like
// selective checkpointing in Megatron-LM.
//
// Differences: dropout masks of libtorch on the CPU have the dtype of their input. If a client of saved tensors is
// installed, such as the counter of this test, sequence parallelism gives it the gathered inputs of column layers, so
// that two of the 16 elements are not divided.
namespace bellows::parallel::testing::tensor {
namespace {

constexpr int64_t width = 64, heads = 4, samples = 2, tokens = 64;

Task gpt_with(int64_t layers, double attention_dropout = 0) {
  Task task{.name = "gpt"};
  task.make = [layers, attention_dropout](double dropout, bool) {
    return models::gpt({.vocab_size = 37,
                        .n_positions = tokens,
                        .n_embd = width,
                        .n_layer = layers,
                        .n_head = heads,
                        .resid_pdrop = dropout,
                        .embd_pdrop = 0,
                        .attn_pdrop = attention_dropout});
  };
  return task;
}

Task bert_with(int64_t layers) {
  Task task{.name = "bert"};
  task.make = [layers](double dropout, bool) {
    return models::bert({.head = models::TextHead::masked_lm,
                         .vocab_size = 37,
                         .hidden_size = width,
                         .num_hidden_layers = layers,
                         .num_attention_heads = heads,
                         .intermediate_size = 4 * width,
                         .hidden_dropout_prob = dropout,
                         .attention_probs_dropout_prob = 0,
                         .max_position_embeddings = tokens});
  };
  return task;
}

using MakeTask = std::function<Task(int64_t layers)>;

std::vector<MakeTask> both_models() {
  return {[](int64_t layers) { return gpt_with(layers); }, bert_with};
}

struct LayerMemory {
  int ranks = 1;
  bool sequence = false;
  double dropout = 0;
  at::ScalarType dtype = at::kFloat;

  /// The theory: bytes that a rank keeps for one layer.
  double expected() const {
    const double t = ranks, masks = dropout > 0 ? 2 : 0;
    const double elements = sequence ? 2 + (14 + masks) / t : 4 + masks + 12 / t;
    return elements * static_cast<double>(samples * tokens * width * static_cast<int64_t>(c10::elementSize(dtype)));
  }
};

/// Bytes that this rank keeps after forward.
int64_t kept_on_rank(const Task& task, const LayerMemory& memory, const comm::Group& group) {
  const Model whole = make_on_rank(task, {.dropout = memory.dropout, .dtype = memory.dtype});
  whole.train();
  const TensorParallel tensor =
      parallelize(whole, group, tensor_plan(whole), {.generator = at::detail::createCPUGenerator(mask_seed)});
  if (memory.sequence) models::run_blocks_by(whole, tensor.sequence_blocks(models::run_blocks_by(whole, {})));
  const auto scope = tensor.scope();
  const at::Tensor ids = drawn_ids(36, {samples, tokens}, 1) + 1;  // without padding, attention needs no mask
  const auto counter = std::make_shared<ActivationCounter>();
  const tap::SavedTensorGuard guard(counter);
  const at::Tensor output = tensor.forward(ids);
  EXPECT_GT(counter->live(), 0);
  return counter->live();
}

/// The difference of models with three and two layers is one layer.
void expect_theory(const MakeTask& model, const LayerMemory& memory) {
  SCOPED_TRACE(c10::str(model(2).name, " on ", memory.ranks, " ranks, ", c10::toString(memory.dtype), ", dropout ",
                        memory.dropout, memory.sequence ? ", sequence parallel" : ""));
  std::mutex reports;
  run_ranks(memory.ranks, [&](const comm::Group& group) {
    const int64_t two = kept_on_rank(model(2), memory, group), three = kept_on_rank(model(3), memory, group);
    const std::lock_guard<std::mutex> lock(reports);
    EXPECT_NEAR(static_cast<double>(three - two), memory.expected(), 0.05 * memory.expected());
  });
}

TEST(TensorMemory, LayersStoreMegatronsActivations) {
  tap::install_saved_tensor_taps();
  for (const auto& model : both_models()) {
    for (const int ranks : {1, 2, 4}) {
      expect_theory(model, {.ranks = ranks});
      expect_theory(model, {.ranks = ranks, .dropout = 0.1});
    }
    expect_theory(model, {.ranks = 2, .dtype = at::kBFloat16});
  }
}

TEST(TensorMemory, SequenceParallelismDividesNormsAndMasks) {
  tap::install_saved_tensor_taps();
  for (const auto& model : both_models()) {
    for (const int ranks : {2, 4}) {
      expect_theory(model, {.ranks = ranks, .sequence = true});
      expect_theory(model, {.ranks = ranks, .sequence = true, .dropout = 0.1});
    }
  }
}

/// What backward computes again.
enum class Recomputed { nothing, all_but_matmuls, blocks, divided_blocks };

void recompute_by(const Model& model, Recomputed recomputed) {
  if (recomputed == Recomputed::nothing) return;
  recompute::CheckpointOptions options;
  if (recomputed == Recomputed::all_but_matmuls) options.policy = keep_matmuls;
  models::run_blocks_by(model, [options](const models::Block& block, const at::Tensor& x) {
    return recompute::checkpoint(options, block, x);
  });
}

/// Bytes of the CPU allocator in this process, after the threads of the collectives have freed their tensors.
int64_t settled_bytes() {
  int64_t bytes = tap::cpu_allocation_counters().current_bytes;
  for (int equal = 0; equal < 10; ++equal) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const int64_t now = tap::cpu_allocation_counters().current_bytes;
    if (std::exchange(bytes, now) != now) equal = -1;
  }
  return bytes;
}

/// Bytes of the CPU allocator that forward leaves in this process.
int64_t allocated_by(const Task& task, Recomputed recomputed, bool sequence, const comm::Group& group) {
  const Model whole = make_on_rank(task, {.dtype = at::kFloat});
  whole.train();
  const TensorParallel tensor = parallelize(whole, group, tensor_plan(whole));
  recompute_by(whole, recomputed);
  if (sequence) models::run_blocks_by(whole, tensor.sequence_blocks(models::run_blocks_by(whole, {})));
  std::optional<recompute::PartitionGuard> partition;
  if (recomputed == Recomputed::divided_blocks) partition.emplace(group);
  at::manual_seed(mask_seed);
  const auto scope = tensor.scope();
  const at::Tensor ids = drawn_ids(36, {4 * samples, tokens}, 1) + 1;
  const int64_t before = settled_bytes();
  const at::Tensor output = tensor.forward(ids);
  return settled_bytes() - before;
}

/// Elements per token and feature that one layer allocates.
double layer_elements(const MakeTask& model, Recomputed recomputed, bool sequence, const comm::Group& group) {
  const auto allocated = [&](int64_t layers) { return allocated_by(model(layers), recomputed, sequence, group); };
  allocated(2);  // allocates buffers that the process keeps
  const int64_t two = allocated(2), three = allocated(3);
  return static_cast<double>(three - two) / static_cast<double>(4 * samples * tokens * width * 4);
}

// In processes, because the counter is that of the process.
TEST(TensorMemory, SequenceParallelismDividesAllActivations) {
  run_processes(2, [](const comm::World& world, const std::string&) {
    tap::install_cpu_allocator();
    for (const MakeTask& model : both_models()) {
      SCOPED_TRACE(model(1).name);
      EXPECT_NEAR(layer_elements(model, Recomputed::nothing, true, world), 16.0 / 2, 0.05 * 16 / 2);
      EXPECT_NEAR(layer_elements(model, Recomputed::nothing, false, world), 4 + 12.0 / 2, 0.05 * 10);
    }
  });
}

/// With dropout, attention stores 3·a·s/h elements more: weights, masks and their product. Megatron-LM's selective
/// checkpointing recomputes them, and stores 4 + 12/t elements. Recomputed blocks store their inputs, which PartitionGuard
/// divides among the ranks of the tensor axis.
TEST(TensorMemory, RecomputationStoresAtMostWhatMegatronStores) {
  run_processes(2, [](const comm::World& world, const std::string&) {
    tap::install_cpu_allocator();
    const auto elements = [&](Recomputed recomputed) {
      return layer_elements([](int64_t layers) { return gpt_with(layers, /*attention_dropout=*/0.1); }, recomputed,
                            /*sequence=*/false, world);
    };
    const double t = 2, weights = 3.0 * heads * tokens / width;
    EXPECT_GE(elements(Recomputed::nothing), 0.95 * (4 + (12 + weights) / t));
    EXPECT_LE(elements(Recomputed::all_but_matmuls), 1.05 * (4 + 12 / t));
    const double blocks = elements(Recomputed::blocks);
    EXPECT_GE(blocks, 0.95);
    EXPECT_LE(blocks, 1.1);  // also the state of the random generator
    const double divided = elements(Recomputed::divided_blocks);
    EXPECT_GE(divided, 0.95 / t);
    EXPECT_LE(divided, 1 / t + 0.1);
  });
}

}  // namespace
}  // namespace bellows::parallel::testing::tensor
