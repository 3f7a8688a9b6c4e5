#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "bellows/core/model.h"

namespace bellows::optim {

/// Options for the parameters whose names match a pattern. Options that are not set keep the optimizer's values.
struct GroupOptions {
  std::string pattern;  ///< pattern for complete names: `*` matches any text, `?` any character, `[ab]` an a or a b
  std::optional<double> lr = {}, weight_decay = {}, momentum = {}, beta1 = {}, beta2 = {}, alpha = {}, eps = {};
};

/// Parameters that share options.
struct PatternGroup {
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  GroupOptions options;
};

/// Divides a model's parameters into groups by name. Each parameter belongs to the first pattern that matches. The
/// other parameters form a last group with the optimizer's own options. Pass the result to an optimizer instead of the
/// parameters: `AdamW(param_groups(model, {{.pattern = "*.bias", .weight_decay = 0}}), {.lr = 1e-3})`.
/// Throws: c10::ValueError if no parameter is left for a pattern (the message suggests the nearest parameter). The
///         optimizer's constructor throws c10::ValueError for an option that the optimizer does not have
std::vector<PatternGroup> param_groups(const Model& model, const std::vector<GroupOptions>& rules);

}  // namespace bellows::optim
