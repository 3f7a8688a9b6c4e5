#include "bellows/plan/simulator/memory.h"

#include <algorithm>
#include <numeric>

namespace bellows::train {

namespace {

constexpr double fp32_element_bytes = 4;

/// Bytes of the activations of a layer, for each token of a rank.
struct TokenBytes {
  double whole = 0;      ///< not divided by tensor parallelism alone
  double divided = 0;    ///< without attention scores
  double scores = 0;     ///< of attention
  double alternate = 0;  ///< every second result of a matrix multiplication
};

TokenBytes token_bytes(const TransformerShape& shape, const SimulatedJob& job) {
  const double element = element_bytes(job);
  const auto width = static_cast<double>(shape.width), inner = static_cast<double>(shape.inner);
  const auto query = static_cast<double>(shape.query_width()), kv = static_cast<double>(shape.kv_width());
  const auto heads = static_cast<double>(shape.heads), keys = static_cast<double>(length_of(shape, job));
  const double mask = shape.dropout ? 1 : 0;
  TokenBytes bytes;
  bytes.whole = element * 4 * width + 2 * mask * width;  // inputs of norms and of column layers, masks
  bytes.divided = element * (2 * query + 2 * kv + (shape.gated ? 3 : 2) * inner);
  // Fused attention keeps the logarithm of the sum of exponentials in fp32. Other attention keeps probabilities, their
  // dropped-out copy and the mask.
  bytes.scores = job.fused_attention ? fp32_element_bytes * heads : heads * keys * (element * (1 + mask) + mask);
  bytes.alternate = element * (query + kv + inner + (shape.gated ? width : 0));  // of the order q, k, v, o, …
  return bytes;
}

double kept_token_bytes(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job,
                        Recomputed recomputed) {
  const TokenBytes bytes = token_bytes(shape, job);
  const auto tensor = static_cast<double>(mesh.tensor);
  const double input = element_bytes(job) * static_cast<double>(shape.width);
  const double undivided = job.sequence_parallel ? 1 / tensor : 1;
  switch (recomputed) {
    case Recomputed::blocks:
      return input * undivided;
    case Recomputed::half:
      return input * undivided +
             (bytes.alternate + element_bytes(job) * static_cast<double>(shape.query_width()) + bytes.scores) / tensor;
    case Recomputed::attention:
      return bytes.whole * undivided + bytes.divided / tensor;
    default:
      return bytes.whole * undivided + (bytes.divided + bytes.scores) / tensor;
  }
}

/// Logits, the output of log-softmax in fp32 and its gradient.
double logit_bytes(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job) {
  if (!shape.predicts_tokens) return 0;
  return micro_tokens(shape, mesh, job) * static_cast<double>(shape.vocabulary) / static_cast<double>(mesh.tensor) *
         (element_bytes(job) + 2 * fp32_element_bytes);
}

/// Parameters that ZeRO-3 has gathered at the same time: embedding and output layer, and two layers. A pipeline gathers
/// all parameters of a rank once per step.
double gathered_bytes(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job,
                      double parameters) {
  if (job.zero_stage < 3 || shard_ranks(mesh) == 1) return 0;
  const double working =
      static_cast<double>(shape.embedding_parameters() + shape.head_parameters() + 2 * shape.layer_parameters()) /
      static_cast<double>(mesh.tensor);
  const bool reshards = job.reshard_after_forward && mesh.pipeline == 1;
  return element_bytes(job) * (reshards ? std::min(working, parameters) : parameters);
}

/// Parameters of all stages of a rank.
double parameters_of_rank(const TransformerShape& shape, const SimulatedMesh& mesh,
                          const parallel::PipelineSchedule& schedule, const std::vector<int64_t>& layers, int rank) {
  const auto tensor = static_cast<double>(mesh.tensor);
  const auto small = static_cast<double>(shape.layer_parameters() - shape.layer_matrices());
  const double layer = static_cast<double>(shape.layer_matrices()) / tensor + small;
  const int last = schedule.stages() - 1;
  double sum = 0;
  for (int stage = 0; stage <= last; ++stage) {
    if (schedule.stage_ranks[static_cast<size_t>(stage)] != rank) continue;
    sum += layer * static_cast<double>(layers[static_cast<size_t>(stage)]);
    if (stage == 0) sum += static_cast<double>(shape.embedding_parameters()) / tensor;
    const bool copies_embedding = stage == last && last > 0 && shape.tied && shape.predicts_tokens;
    if (copies_embedding) sum += static_cast<double>(shape.vocabulary * shape.width) / tensor;
    if (stage == last) sum += static_cast<double>(shape.head_parameters()) / tensor;
  }
  return sum;
}

SimulatedMemory memory_of_rank(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job,
                               const parallel::PipelineSchedule& schedule, const std::vector<int64_t>& layers, int rank,
                               int in_flight) {
  const double parameters = parameters_of_rank(shape, mesh, schedule, layers, rank);
  const auto shards = static_cast<double>(shard_ranks(mesh));
  const auto share = [&](int stage) { return job.zero_stage >= stage ? 1 / shards : 1; };
  const double tokens = micro_tokens(shape, mesh, job);
  int64_t rank_layers = 0, rank_stages = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    if (schedule.stage_ranks[stage] != rank) continue;
    rank_layers += layers[stage];
    ++rank_stages;
  }
  SimulatedMemory memory;
  memory.parameters = fp32_element_bytes * parameters * share(3);
  // ZeRO-3 gathers weights in 16 bits. Otherwise, autocast makes copies.
  if (job.dtype != "fp32" && job.zero_stage < 3) memory.parameters += 2 * parameters;
  // A pipeline adds the gradients of all micro-batches before it divides them.
  memory.gradients = fp32_element_bytes * parameters * (mesh.pipeline > 1 ? 1 : share(2));
  memory.state = job.state_bytes * parameters * share(1);
  memory.activations = in_flight * static_cast<double>(rank_layers) / static_cast<double>(rank_stages) * tokens *
                       kept_token_bytes(shape, mesh, job, job.recomputed);
  const bool has_logits = schedule.stage_ranks.back() == rank;
  const double block =
      job.recomputed == Recomputed::nothing ? 0 : tokens * kept_token_bytes(shape, mesh, job, Recomputed::nothing);
  memory.working =
      std::max(has_logits ? logit_bytes(shape, mesh, job) : 0, block) + gathered_bytes(shape, mesh, job, parameters);
  return memory;
}

}  // namespace

double activation_bytes(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job) {
  return micro_tokens(shape, mesh, job) * kept_token_bytes(shape, mesh, job, job.recomputed);
}

double parameters_per_rank(const TransformerShape& shape, const SimulatedMesh& mesh,
                           const parallel::PipelineSchedule& schedule, const std::vector<int64_t>& layers) {
  double most = 0;
  for (int rank = 0; rank < static_cast<int>(mesh.pipeline); ++rank)
    most = std::max(most, parameters_of_rank(shape, mesh, schedule, layers, rank));
  return most;
}

SimulatedMemory simulate_memory(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job,
                                const parallel::PipelineSchedule& schedule, const std::vector<int64_t>& layers) {
  const std::vector<int> in_flight = parallel::activations_in_flight(schedule);
  SimulatedMemory most;
  for (int rank = 0; rank < static_cast<int>(mesh.pipeline); ++rank) {
    const SimulatedMemory memory =
        memory_of_rank(shape, mesh, job, schedule, layers, rank, in_flight[static_cast<size_t>(rank)]);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

}  // namespace bellows::train
