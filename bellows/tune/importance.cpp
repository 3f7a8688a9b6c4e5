#include "bellows/tune/importance.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace bellows::tune {

namespace {

constexpr size_t fewest_trials = 4, number_groups = 4;

struct GroupSum {
  double sum = 0, count = 0;
};

/// The mean position of each number in the sorted list, so that equal numbers have equal ranks.
std::vector<double> ranks_of(const std::vector<double>& numbers) {
  std::vector<double> ranks(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    double below = 0, equal = 0;
    for (const double number : numbers) {
      below += number < numbers[i];
      equal += number == numbers[i];
    }
    ranks[i] = below + (equal - 1) / 2;
  }
  return ranks;
}

/// The group of each value: the value itself if there are few values, otherwise a quantile.
std::vector<double> groups_of(const std::vector<double>& values, bool choice) {
  std::vector<double> distinct = values;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (choice || distinct.size() <= number_groups) return values;
  std::vector<double> groups = ranks_of(values);
  const auto count = static_cast<double>(values.size());
  for (double& group : groups) group = std::floor(group * static_cast<double>(number_groups) / count);
  return groups;
}

double explained_share(const std::vector<double>& groups, const std::vector<double>& objectives) {
  const auto count = static_cast<double>(objectives.size());
  const double mean = std::accumulate(objectives.begin(), objectives.end(), 0.0) / count;
  std::map<double, GroupSum> sums;
  double total = 0, between = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    sums[groups[i]].sum += objectives[i] - mean;
    sums[groups[i]].count += 1;
    total += (objectives[i] - mean) * (objectives[i] - mean);
  }
  for (const auto& [group, sum] : sums) between += sum.sum * sum.sum / sum.count;
  return total > 0 ? between / total : 0;
}

}  // namespace

std::vector<double> parameter_importance(const SearchSpace& space, const std::vector<Trial>& trials) {
  std::vector<Trial> complete;
  std::copy_if(trials.begin(), trials.end(), std::back_inserter(complete),
               [](const Trial& trial) { return trial.state == TrialState::complete; });
  std::vector<double> shares(space.parameters.size()), objectives(complete.size()), values(complete.size());
  if (complete.size() < fewest_trials) return shares;
  std::transform(complete.begin(), complete.end(), objectives.begin(), [](const Trial& t) { return t.objective; });
  objectives = ranks_of(objectives);
  for (size_t p = 0; p < shares.size(); ++p) {
    std::transform(complete.begin(), complete.end(), values.begin(), [&](const Trial& t) { return t.values[p]; });
    const bool choice = space.parameters[p].kind == Parameter::Kind::choice;
    shares[p] = explained_share(groups_of(values, choice), objectives);
  }
  return shares;
}

}  // namespace bellows::tune
