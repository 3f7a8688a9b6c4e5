#include <gmock/gmock.h>

#include "bellows/models/blocks.h"
#include "tests/parallel/activation_counter.h"
#include "tests/parallel/tensor/tensor_support.h"

// The activations of a transformer layer, compared with Megatron-LM's formula (arXiv:2205.05198, table 2). It counts the
// bytes of 16-bit activations for a sequence of s tokens, b samples, width h and t ranks: s·b·h (10 + 24/t), and with
// sequence parallelism s·b·h · 34/t. These are 4 + 12/t and 16/t elements, and two dropout masks of one byte. The part
// 5·a·s²·b/t of the attention weights is left out: libtorch's attention without dropout does not store them, like
// selective checkpointing in Megatron-LM.
//
// Differences of libtorch on the CPU: dropout masks have the dtype of their input. A column layer keeps its gathered
// input, so that two of the 16 elements are not divided with sequence parallelism.
namespace bellows::parallel::testing::tensor {
namespace {

constexpr int64_t width = 64, heads = 4, samples = 2, tokens = 64;

Task gpt_with(int64_t layers) {
  Task task{.name = "gpt"};
  task.make = [layers](double dropout, bool) {
    return models::gpt({.vocab_size = 37,
                        .n_positions = tokens,
                        .n_embd = width,
                        .n_layer = layers,
                        .n_head = heads,
                        .resid_pdrop = dropout,
                        .embd_pdrop = 0,
                        .attn_pdrop = 0});
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
void expect_theory(const std::function<Task(int64_t layers)>& model, const LayerMemory& memory) {
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
  for (const auto& model : {gpt_with, bert_with}) {
    for (const int ranks : {1, 2, 4}) {
      expect_theory(model, {.ranks = ranks});
      expect_theory(model, {.ranks = ranks, .dropout = 0.1});
    }
    expect_theory(model, {.ranks = 2, .dtype = at::kBFloat16});
  }
}

TEST(TensorMemory, SequenceParallelismDividesNormsAndMasks) {
  tap::install_saved_tensor_taps();
  for (const auto& model : {gpt_with, bert_with}) {
    for (const int ranks : {2, 4}) {
      expect_theory(model, {.ranks = ranks, .sequence = true});
      expect_theory(model, {.ranks = ranks, .sequence = true, .dropout = 0.1});
    }
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::tensor
