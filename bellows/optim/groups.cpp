#include "bellows/optim/groups.h"

#include <fnmatch.h>

#include <map>

#include "bellows/core/error.h"
#include "bellows/optim/state/fields_impl.h"

namespace bellows::optim {

std::vector<PatternGroup> param_groups(const Model& model, const std::vector<GroupOptions>& rules) {
  std::vector<PatternGroup> groups;
  for (const GroupOptions& rule : rules) groups.push_back({{}, {}, rule});
  groups.emplace_back();
  std::vector<std::string> names;
  for (const auto& [name, parameter] : model.named_parameters()) {
    size_t place = 0;
    while (place < rules.size() && fnmatch(rules[place].pattern.c_str(), name.c_str(), 0) != 0) ++place;
    groups[place].names.push_back(name);
    groups[place].params.push_back(parameter);
    names.push_back(name);
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    TORCH_CHECK_VALUE(!groups[i].params.empty(), "param_groups: no parameter matches the pattern \"", rules[i].pattern,
                      "\" (rule ", i, ").", did_you_mean(rules[i].pattern, names),
                      " Each parameter belongs to the first rule that matches its complete name.");
  }
  if (groups.back().params.empty()) groups.pop_back();
  return groups;
}

void override_options(to::OptimizerOptions& options, const GroupOptions& overrides) {
  std::map<std::string, double> left;
  const auto put = [&](const char* name, const std::optional<double>& value) {
    if (value) left[name] = *value;
  };
  put("lr", overrides.lr), put("weight_decay", overrides.weight_decay), put("momentum", overrides.momentum);
  put("beta1", overrides.beta1), put("beta2", overrides.beta2), put("alpha", overrides.alpha),
      put("eps", overrides.eps);
  const auto take = [&](const char* name, double& value) {
    const auto found = left.find(name);
    if (found == left.end()) return;
    value = found->second;
    left.erase(found);
  };
  with_kind(options, [&](auto kind) {
    fields(static_cast<typename decltype(kind)::Options&>(options), [&](const char* name, auto& value) {
      using T = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<T, double>) take(name, value);
      if constexpr (std::is_same_v<T, std::tuple<double, double>>) {
        if (std::string_view(name) != "betas") return;
        take("beta1", std::get<0>(value));
        take("beta2", std::get<1>(value));
      }
    });
    return true;
  });
  TORCH_CHECK_VALUE(left.empty(), "param_groups: the group \"", overrides.pattern, "\" sets ", left.begin()->first,
                    ", but this optimizer has no such option.");
}

}  // namespace bellows::optim
