#include <gmock/gmock.h>

#include "tests/parallel/activation_counter.h"
#include "tests/parallel/pipeline/pipeline_support.h"

// A rank keeps the activations of as many micro-batches as activations_in_flight() states.
namespace bellows::parallel::testing::stages {
namespace {

constexpr int64_t memory_width = 64, memory_tokens = 32, micro_batch_samples = 2;
constexpr int memory_micro_batches = 8;

Task wide_gpt() {
  Task task{.name = "wide gpt"};
  task.make = [](double, bool) {
    return models::gpt({.vocab_size = 37,
                        .n_positions = memory_tokens,
                        .n_embd = memory_width,
                        .n_layer = 4,
                        .n_head = 4,
                        .resid_pdrop = 0,
                        .embd_pdrop = 0,
                        .attn_pdrop = 0});
  };
  return task;
}

/// The stages on ranks 1 and 2 have one and two layers, and nothing else. Megatron-LM's formula counts 16 elements per
/// token, layer and feature (tests/parallel/tensor/memory_test.cpp). The input of a stage is a leaf, which the counter
/// leaves out.
double stage_bytes(int layers) {
  return (16 * layers - 1) * static_cast<double>(micro_batch_samples * memory_tokens * memory_width) * sizeof(float);
}

/// Returns the peak on each rank of one step.
std::vector<int64_t> peaks_of(const PipelineSchedule& schedule) {
  const StagedTraining run{.first_parts = {0, 2, 3, 5}, .dtype = at::kFloat};
  const int64_t samples = micro_batch_samples * memory_micro_batches;
  std::vector<int64_t> peaks(4);
  tap::install_saved_tensor_taps();  // before a rank runs backward
  run_ranks(4, [&](const comm::Group& group) {
    Pipeline stages = make_pipeline(wide_gpt(), run, schedule, group);
    const auto counter = std::make_shared<ActivationCounter>();
    const tap::SavedTensorGuard guard(counter);
    stages.step({drawn_ids(37, {samples, memory_tokens}, 1)}, {drawn_ids(37, {samples, memory_tokens}, 2)},
                mean_token_loss);
    EXPECT_EQ(counter->live(), 0) << "activations are left after the step";
    peaks[static_cast<size_t>(group.rank())] = counter->peak();
  });
  return peaks;
}

TEST(PipelineMemory, RanksKeepTheMicroBatchesInFlight) {
  for (const PipelineSchedule& schedule :
       {gpipe(4, memory_micro_batches), one_forward_one_backward(4, memory_micro_batches)}) {
    SCOPED_TRACE(schedule.name);
    const std::vector<int> in_flight = activations_in_flight(schedule);
    const std::vector<int64_t> peaks = peaks_of(schedule);
    for (const size_t rank : {1, 2}) {
      const double expected = in_flight[rank] * stage_bytes(static_cast<int>(rank));
      EXPECT_NEAR(static_cast<double>(peaks[rank]), expected, 0.05 * expected) << "rank " << rank;
    }
  }
}

/// Between backward_input and backward_weight, a rank keeps at most the activations of forward.
TEST(PipelineMemory, ZeroBubbleKeepsAtMostTheMicroBatchesInFlight) {
  const PipelineSchedule schedule = zero_bubble_h1(4, memory_micro_batches);
  const std::vector<int> in_flight = activations_in_flight(schedule);
  const std::vector<int64_t> peaks = peaks_of(schedule);
  for (const size_t rank : {1, 2}) {
    const double one = stage_bytes(static_cast<int>(rank));
    EXPECT_LE(static_cast<double>(peaks[rank]), 1.05 * in_flight[rank] * one) << "rank " << rank;
    EXPECT_GE(static_cast<double>(peaks[rank]), 0.95 * static_cast<double>(4 - rank) * one) << "rank " << rank;
  }
}

}  // namespace
}  // namespace bellows::parallel::testing::stages
