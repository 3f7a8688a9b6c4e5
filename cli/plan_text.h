#pragma once

#include <string>

#include "bellows/plan/decision.h"

namespace bellows::cli {

/// What `bellows plan` found.
struct PlanReport {
  train::MemoryPlan plan;
  std::vector<train::PredictedTechnique> techniques;
  train::Situation situation;
  train::Decision decision;
  double price_per_hour = 0;   ///< of one device; 0: not asked
  bool measured_step = false;  ///< the time of a step was given
};

/// For people, at most 80 columns wide.
std::string plan_text(const PlanReport& report);
/// The same for machines.
std::string plan_json(const PlanReport& report);

}  // namespace bellows::cli
