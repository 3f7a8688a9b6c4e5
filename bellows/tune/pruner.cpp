#include "bellows/tune/pruner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace bellows::tune {

namespace {

/// The value with which a trial reached a rung, if it did. As in Optuna, NaN does not count.
std::optional<double> value_at(const Trial& trial, int64_t rung) {
  const auto at = std::ranges::find_if(trial.reports, [&](const TrialReport& report) { return report.step >= rung; });
  if (at == trial.reports.end() || std::isnan(at->value)) return std::nullopt;
  return at->value;
}

/// The last value of a trial when it had used a part of the objective, if it had reported one.
std::optional<double> value_after(const Trial& trial, double spent) {
  std::optional<double> value;
  for (const TrialReport& report : trial.reports) {
    if (report.spent <= spent && !std::isnan(report.value)) value = report.value;
  }
  return value;
}

std::vector<double> values_at(const std::vector<Trial>& trials, int64_t rung, double spent) {
  std::vector<double> values;
  values.reserve(trials.size());
  for (const Trial& trial : trials) {
    if (trial.state == TrialState::interrupted) continue;  // runs again
    if (const auto value = std::isnan(spent) ? value_at(trial, rung) : value_after(trial, spent))
      values.push_back(*value);
  }
  return values;
}

bool among_best(std::vector<double> values, double value, int64_t factor) {
  const size_t best = std::max<size_t>(values.size() / static_cast<size_t>(factor), 1);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(best - 1), values.end());
  return value <= values[best - 1];
}

}  // namespace

bool should_prune(const HalvingOptions& options, const std::vector<Trial>& trials, int64_t number) {
  TORCH_CHECK_VALUE(options.first_rung >= 1, "tune: the first rung must be at least 1, got ", options.first_rung, ".");
  TORCH_CHECK_VALUE(options.factor >= 2, "tune: the factor must be at least 2, got ", options.factor, ".");
  const Trial& trial = trials.at(static_cast<size_t>(number));
  if (trial.reports.empty()) return false;
  const TrialReport& last = trial.reports.back();
  const int64_t before = trial.reports.size() > 1 ? trial.reports[trial.reports.size() - 2].step : 0;
  for (int64_t rung = options.first_rung; rung <= last.step; rung *= options.factor) {
    if (rung <= before) continue;  // an earlier report reached it
    if (std::isnan(last.value)) return true;
    if (!among_best(values_at(trials, rung, last.spent), last.value, options.factor)) return true;
    if (rung > std::numeric_limits<int64_t>::max() / options.factor) break;
  }
  return false;
}

}  // namespace bellows::tune
