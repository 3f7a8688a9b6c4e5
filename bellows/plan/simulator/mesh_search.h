#pragma once

#include <string>
#include <vector>

#include "bellows/plan/simulator/simulator.h"

namespace bellows::train {

/// The meshes for a number of ranks.
struct MeshSearch {
  std::vector<Simulation> candidates;  ///< those that fit, the fastest first; then the others, the smallest first
  std::string reason;                  ///< one or two sentences
  /// Whether a candidate fits. The first one is then the fastest that does.
  bool fits() const { return candidates.front().fits; }
};

/// Simulates all meshes with `ranks` ranks that the model and the batch allow. The axis tensor stays within a node. For each
/// mesh, it uses the lowest ZeRO stage that fits, and for pipelines the fastest of up to four numbers of micro-batches, from
/// one to eight per stage. Other settings are those of `job`.
/// Params: job – its zero_stage is the lowest stage to try. Its micro_batches are used for meshes without a pipeline
/// Throws: c10::ValueError if no mesh is possible. The message has the problem of the last one
MeshSearch search_meshes(const TransformerShape& shape, const Cluster& cluster, const SimulatedJob& job, int64_t ranks);

}  // namespace bellows::train
