#include "bellows/advice/findings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>

#include "bellows/advice/rules.h"
#include "bellows/core/stats.h"

namespace bellows::train {

const std::vector<FindingRule>& finding_rules() {
  static const std::vector<FindingRule>& table = *new std::vector<FindingRule>([] {
    std::vector<FindingRule> rules = speed_rules();
    for (auto* const more : {code_rules, rank_rules}) std::ranges::move(more(), std::back_inserter(rules));
    return rules;
  }());
  return table;
}

namespace {

/// Whether the recipe with these settings is valid.
bool fits(Recipe recipe, const std::vector<std::string>& settings) {
  try {
    for (const std::string& setting : settings) recipe.set(setting);
    recipe.validate();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

std::vector<Finding> findings_of(const RecipeProfile& profile) {
  std::vector<Finding> findings;
  findings.reserve(finding_rules().size());
  for (const FindingRule& rule : finding_rules()) {
    std::optional<Finding> found = rule.find(profile);
    if (!found) continue;
    found->name = rule.name;
    found->title = rule.title;
    if (!fits(profile.recipe, found->settings)) found->settings.clear();
    findings.push_back(*std::move(found));
  }
  std::ranges::stable_sort(findings, std::greater<>(), &Finding::gain);
  return findings;
}

std::string percent_of(double part, double whole) {
  return format_number("%.0f %%", whole > 0 ? 100 * part / whole : 0.0);
}

double gain_without(const RecipeProfile& profile, double seconds) {
  return profile.step.step_s / std::max(profile.step.step_s - seconds, 0.01 * profile.step.step_s);
}

}  // namespace bellows::train
