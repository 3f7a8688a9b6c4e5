#pragma once

#include <vector>

#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/plan/simulator/simulated_job.h"

namespace bellows::train {

/// The predicted memory of the rank that needs most, in bytes.
struct SimulatedMemory {
  double parameters = 0;   ///< in fp32, and copies in 16 bits
  double gradients = 0;    ///< in fp32
  double state = 0;        ///< of the optimizer
  double activations = 0;  ///< of all micro-batches in flight
  double working = 0;      ///< logits with their gradients, a block that is computed again, and gathered weights
  double total() const { return parameters + gradients + state + activations + working; }
};

/// Returns the bytes of activations of one layer and one micro-batch on one rank that are kept for backward. For GPT in
/// 16 bits without fused attention, this is s b h (10 + 24 / t + 5 a s / (h t)). With sequence parallelism, it is
/// s b h / t · (34 + 5 a s / h). Here, s is the length, b the batch, h the width, a the number of heads, and t the ranks
/// of the axis tensor.
/// Ref: arXiv:2205.05198, sections 4.1 to 4.3
double activation_bytes(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job);

/// Returns the elements of parameters that each rank of the axis tensor has in the largest stage.
double parameters_per_rank(const TransformerShape& shape, const SimulatedMesh& mesh,
                           const parallel::PipelineSchedule& schedule, const std::vector<int64_t>& layers);

/// Predicts the memory of a step.
/// Params: schedule – of the axis pipeline; activations_in_flight() gives the micro-batches whose activations a rank keeps
///         layers – number of layers of each stage
/// Numerics: an estimate. It does not include fragmentation and workspaces of kernels
SimulatedMemory simulate_memory(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job,
                                const parallel::PipelineSchedule& schedule, const std::vector<int64_t>& layers);

}  // namespace bellows::train
