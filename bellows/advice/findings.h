#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bellows/advice/recipe_profile.h"

namespace bellows::train {

/// A cause that makes a recipe's training step slow, or its results worse.
struct Finding {
  std::string name{};                 ///< of its rule, such as "slow_loader"
  std::string title{};                ///< of its rule, such as "The step waits for data"
  std::string text{};                 ///< the measured numbers and what to do, in one or two sentences
  std::vector<std::string> places{};  ///< call sites or modules, the most expensive first; at most 5
  /// Recipe settings that help, such as "num_workers=-1". Empty if the code must change.
  std::vector<std::string> settings{};
  double gain = 0;  ///< expected speedup per sample, such as 1.3; 0 if it was not estimated
};

/// A row of the table of findings. docs/profile.md states the condition and the gain of each row.
struct FindingRule {
  std::string name{};
  std::string title{};
  /// Returns the finding without name and title, or nothing if the rule does not apply.
  std::function<std::optional<Finding>(const RecipeProfile&)> find{};
};

/// Returns the table.
const std::vector<FindingRule>& finding_rules();

/// Returns the findings of all rules. The largest gain comes first, and findings without a gain come last.
std::vector<Finding> findings_of(const RecipeProfile& profile);

/// Returns the page of a profile: the answer, the findings, and the sections of the step's profile.
std::string profile_page(const RecipeProfile& profile, const std::vector<Finding>& findings);

}  // namespace bellows::train
