#pragma once

#include <string>
#include <vector>

#include "bellows/plan/simulator/cluster.h"
#include "bellows/plan/simulator/memory.h"
#include "bellows/plan/simulator/simulated_job.h"

namespace bellows::train {

/// The parts of a step's time in seconds, as means over the ranks of a pipeline. The optimizer's step and `data_s` are those
/// of the rank with the most parameters. Exchanges count only while no computation hides them.
struct SimulatedTime {
  double compute_s = 0;     ///< forward, backward and loss
  double recomputed_s = 0;  ///< activations that are computed again
  double update_s = 0;      ///< the optimizer's step
  double tensor_s = 0;      ///< exchange of the axis tensor
  double context_s = 0;     ///< exchange of the axis context
  double data_s = 0;        ///< gradients, and parameters of ZeRO
  double bubble_s = 0;      ///< waiting in a pipeline, also for messages of other stages
  double total() const { return compute_s + recomputed_s + update_s + tensor_s + context_s + data_s + bubble_s; }
};

/// The prediction for one step.
struct Simulation {
  SimulatedMesh mesh;
  SimulatedJob job;
  SimulatedTime time;
  SimulatedMemory memory;
  double capacity = 0;  ///< memory of a rank in bytes
  bool fits = false;    ///< whether `memory` is at most `capacity`
  double samples_per_second = 0;
  double tokens_per_second_per_rank = 0;
  /// Operations of the model without recomputation, divided by those that the devices could run. Attention counts as if
  /// it were not causal, as is usual. NaN if ranks share cores.
  double model_flops_utilization = 0;
};

/// Predicts the time and memory of a training step from operation counts, bytes and rates (layer_time.h, memory.h,
/// collective_cost.h). Pipelines run their schedule table with these times (parallel/pipeline/timeline.h).
///
/// Gradients are exchanged in fp32, and ZeRO-3 gathers parameters in the dtype of activations. Without a pipeline, the
/// exchange overlaps with forward and backward. The gradients of the last layer in backward and of the embedding cannot
/// overlap. With a pipeline, the exchange follows the last backward, so complete gradients stay in memory.
/// Numerics: an estimate. docs/simulator.md compares it with measurements and published figures
/// Cost:     O(stages · micro-batches), usually below a millisecond
/// Throws:   c10::ValueError with job_problem(), or if the cluster does not describe the dtype
Simulation simulate(const TransformerShape& shape, const Cluster& cluster, const SimulatedMesh& mesh,
                    const SimulatedJob& job);

/// Multiplies the rates of the devices (operations and memory bandwidth) by one factor, so that simulate() returns a
/// measured time.
/// Params: seconds – measured time of a step of `mesh` and `job`
/// Throws: c10::ValueError if no factor from 1/1000 to 1000 gives this time, for example because exchanges alone take longer
Cluster calibrate(const Cluster& cluster, const TransformerShape& shape, const SimulatedMesh& mesh,
                  const SimulatedJob& job, double seconds);

}  // namespace bellows::train
