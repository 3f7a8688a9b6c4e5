#pragma once

#include <string>
#include <vector>

#include "bellows/plan/simulator/simulator.h"

namespace bellows::bench {

/// A published measurement, and what the simulator predicts for it.
struct PublishedRow {
  std::string name;
  bool fitted = false;  ///< the row to which the cluster's description was fitted
  bool eager = false;   ///< without compilation, which the simulator does not describe
  double tokens_per_second = 0, memory_gib = 0;
  train::Simulation simulation;

  /// Relative errors of the prediction.
  double speed_error() const { return simulation.tokens_per_second_per_rank / tokens_per_second - 1; }
  double memory_error() const { return simulation.memory.total() / (memory_gib * (1 << 30)) - 1; }
};

/// Simulates the rows of a file such as published.json.
/// Params: folder – contains published.json, the cluster and the models
std::vector<PublishedRow> simulate_published(const std::string& folder);

}  // namespace bellows::bench
