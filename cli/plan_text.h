#pragma once

#include <optional>
#include <string>

#include "bellows/plan/decision.h"
#include "bellows/plan/machine_cost.h"
#include "bellows/plan/strategy.h"

namespace bellows::cli {

/// The results of `bellows plan`.
struct PlanReport {
  train::MemoryPlan plan;
  std::vector<train::PredictedTechnique> techniques;
  train::Situation situation;
  train::Decision decision;
  std::optional<train::StrategyChoice> strategy;  ///< not set for a single rank
  double price_per_hour = 0;                      ///< price of one device per hour; 0 if it is not set
  bool measured_step = false;                     ///< whether the user set the time of a step (--step-ms)
  bool measured_link = false;                     ///< whether the bandwidth between ranks was measured (--measure-link)
  std::optional<train::MachineComparison> machines{};  ///< not set without --prices
  int64_t timed_batches = 1;                           ///< batches of each rank in situation.step_seconds
  int64_t epoch_samples = 0, epochs = 0;               ///< of `machines`; 0 if unknown
};

/// Returns the report as text, in lines of at most 80 columns.
std::string plan_text(const PlanReport& report);
/// Returns the report as JSON.
std::string plan_json(const PlanReport& report);

}  // namespace bellows::cli
