#pragma once

#include <cstdint>
#include <string>

#include "bellows/plan/simulator/transformer_shape.h"

namespace bellows::train {

/// The number of ranks along each axis. Ranks are numbered with tensor as the fastest axis, then context, shard, data and
/// pipeline.
struct SimulatedMesh {
  int64_t data = 1;      ///< copies of the model
  int64_t shard = 1;     ///< ranks that shard one copy (ZeRO, FSDP)
  int64_t context = 1;   ///< ranks that divide the sequence
  int64_t tensor = 1;    ///< ranks that divide each layer
  int64_t pipeline = 1;  ///< ranks that divide the layers into stages

  bool operator==(const SimulatedMesh&) const = default;
  int64_t ranks() const { return data * shard * context * tensor * pipeline; }
  std::string to_string() const;  ///< for example "{data: 2, tensor: 4}"
};

/// Parses a mesh such as "{data: 8, tensor: 8}". Braces are optional, and missing axes have the size 1.
/// Throws: c10::ValueError like parse_mesh()
SimulatedMesh parse_simulated_mesh(const std::string& text);

/// The activations that backward computes again.
enum class Recomputed {
  nothing,
  attention,  ///< the attention without its linear layers (Megatron-LM's selective recomputation)
  half,       ///< everything except attention and every second matrix multiplication (torchtitan's selective option)
  blocks      ///< everything except the inputs of blocks
};

std::string to_string(Recomputed recomputed);  ///< "nothing", "attention", "half" or "blocks"
/// Throws: c10::ValueError if the text is no such name (the message suggests one)
Recomputed parse_recomputed(const std::string& text);

/// The settings of a training step.
struct SimulatedJob {
  int64_t batch = 1;              ///< samples of a step, over all ranks
  int64_t length = 0;             ///< tokens of a sample; 0: the model's maximum
  int64_t micro_batches = 1;      ///< micro-batches of a pipeline, or steps of gradient accumulation
  std::string schedule = "1f1b";  ///< of pipelines: gpipe, 1f1b, interleaved or zero_bubble
  int64_t stages_per_rank = 2;    ///< of the schedule interleaved
  /// 0: DDP, 1 to 3: ZeRO. The ranks of the axes shard and context share the state. If the axis shard has one rank, those
  /// of the axis data do so.
  int zero_stage = 0;
  bool reshard_after_forward = true;  ///< of ZeRO-3
  Recomputed recomputed = Recomputed::nothing;
  std::string dtype = "bf16";      ///< of matrix multiplications: fp32, bf16 or fp8
  bool fused_attention = true;     ///< never stores the matrix of attention scores
  bool sequence_parallel = false;  ///< ranks of the axis tensor also divide norms and dropout
  bool async_tensor = false;       ///< the exchange of the axis tensor overlaps with its matrix multiplications
  bool zigzag = true;              ///< the axis context divides causal attention evenly
  double state_bytes = 8;          ///< of the optimizer, for each parameter: 8 for AdamW in fp32
  int64_t threads = 0;             ///< of a rank that shares cores; 0: its share of the cores
};

/// Returns why the job cannot run: one sentence with what was expected and found, or "" if it can.
std::string job_problem(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job);

// Derived sizes. They are valid if job_problem() is empty.

inline int64_t length_of(const TransformerShape& shape, const SimulatedJob& job) {
  return job.length > 0 ? job.length : shape.positions;
}
/// Bytes of an element of activations.
inline double element_bytes(const SimulatedJob& job) {
  return job.dtype == "fp32" ? 4 : 2;
}
/// Samples of one micro-batch on one rank.
inline double micro_samples(const SimulatedMesh& mesh, const SimulatedJob& job) {
  return static_cast<double>(job.batch) / static_cast<double>(mesh.data * mesh.shard * job.micro_batches);
}
/// Tokens of one micro-batch on one rank.
inline double micro_tokens(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job) {
  return micro_samples(mesh, job) * static_cast<double>(length_of(shape, job)) / static_cast<double>(mesh.context);
}
/// The ranks that share the sharded state.
inline int64_t shard_ranks(const SimulatedMesh& mesh) {
  return (mesh.shard > 1 ? mesh.shard : mesh.data) * mesh.context;
}

}  // namespace bellows::train
