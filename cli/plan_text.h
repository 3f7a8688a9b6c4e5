#pragma once

#include <string>

#include "bellows/plan/decision.h"

namespace bellows::cli {

/// The results of `bellows plan`.
struct PlanReport {
  train::MemoryPlan plan;
  std::vector<train::PredictedTechnique> techniques;
  train::Situation situation;
  train::Decision decision;
  double price_per_hour = 0;   ///< of one device; 0: not requested
  bool measured_step = false;  ///< the time of a step was given by the user
};

/// The report as text with at most 80 columns.
std::string plan_text(const PlanReport& report);
/// The report as JSON.
std::string plan_json(const PlanReport& report);

}  // namespace bellows::cli
