#include "bellows/export/axes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "bellows/core/error.h"

namespace bellows::export_detail {

namespace {

using Inputs = std::vector<at::Tensor>;

/// Without `dynamic_axes`: the first axis of all inputs with the same size as that of the first input.
DynamicAxes default_axes(const Inputs& inputs, const std::vector<std::string>& names) {
  DynamicAxes axes;
  int64_t batch = -1;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].dim() == 0) continue;
    if (batch < 0) batch = inputs[i].size(0);
    if (inputs[i].size(0) == batch) axes[names[i]][0] = "batch";
  }
  return axes;
}

void add_place(std::vector<VariedAxis>& axes, const std::string& name, size_t input, int64_t axis, const Inputs& inputs,
               const std::string& input_name, const AxisOptions& options) {
  const int64_t rank = inputs[input].dim();
  TORCH_CHECK_VALUE(axis >= 0 && axis < rank, options.caller, ": dynamic_axes: input \"", input_name, "\" has ", rank,
                    " axes, so there is no axis ", axis, ".");
  TORCH_CHECK_VALUE(!name.empty(), options.caller, ": dynamic_axes: axis ", axis, " of \"", input_name,
                    "\" has an empty name.");
  TORCH_CHECK_VALUE(inputs[input].size(axis) > 0, options.caller, ": axis ", axis, " of the example input \"",
                    input_name, "\" is empty. Pass an example with at least one element.");
  const auto same = std::find_if(axes.begin(), axes.end(), [&](const VariedAxis& one) { return one.name == name; });
  const auto place = std::pair(input, static_cast<size_t>(axis));
  if (same == axes.end()) {
    axes.push_back({.name = name, .places = {place}, .sizes = {}});
    return;
  }
  const auto& [other, other_axis] = same->places[0];
  TORCH_CHECK_VALUE(inputs[other].size(static_cast<int64_t>(other_axis)) == inputs[input].size(axis), options.caller,
                    ": dynamic_axes: axes named \"", name, "\" must have the same size in the example inputs, got ",
                    inputs[other].size(static_cast<int64_t>(other_axis)), " and ", inputs[input].size(axis), " (\"",
                    input_name, "\", axis ", axis, ").");
  same->places.push_back(place);
}

void set_sizes(std::vector<VariedAxis>& axes, const AxisOptions& options) {
  std::vector<std::string> names;
  names.reserve(axes.size());
  for (const VariedAxis& axis : axes) names.push_back(axis.name);
  for (const auto& [name, sizes] : options.sizes) {
    const auto found = std::find_if(axes.begin(), axes.end(),
                                    [&, &wanted = name](const VariedAxis& one) { return one.name == wanted; });
    TORCH_CHECK_VALUE(found != axes.end(), options.caller, ": sizes: there is no dynamic axis \"", name, "\".",
                      did_you_mean(name, names));
    const std::set<int64_t> different(sizes.begin(), sizes.end());
    TORCH_CHECK_VALUE(sizes.size() == 3 && different.size() == 3 && *different.begin() >= 2, options.caller,
                      ": sizes: expected three different sizes of at least 2 for axis \"", name, "\", got ", sizes,
                      ".");
    found->sizes = sizes;
  }
}

}  // namespace

std::vector<VariedAxis> varied_axes(const std::vector<at::Tensor>& inputs, const std::vector<std::string>& names,
                                    const AxisOptions& options) {
  std::vector<VariedAxis> axes;
  for (const auto& [name, of_input] : options.dynamic_axes ? *options.dynamic_axes : default_axes(inputs, names)) {
    const auto found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK_VALUE(found != names.end(), options.caller, ": dynamic_axes: there is no input \"", name, "\".",
                      did_you_mean(name, names));
    const auto input = static_cast<size_t>(found - names.begin());
    TORCH_CHECK_VALUE(inputs[input].defined(), options.caller, ": dynamic_axes: the input \"", name, "\" is omitted.");
    for (const auto& [axis, axis_name] : of_input) add_place(axes, axis_name, input, axis, inputs, name, options);
  }
  set_sizes(axes, options);
  return axes;
}

std::vector<std::string> numbered_names(const std::string& name, size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(i == 0 ? name : name + "_" + std::to_string(i));
  return names;
}

void check_names(const std::vector<std::string>& names, size_t count, const char* of, const char* caller) {
  TORCH_CHECK_VALUE(names.size() == count, caller, ": expected ", count, " names of ", of, ", got ", names.size(), ".");
  std::set<std::string> seen;
  for (const std::string& name : names)
    TORCH_CHECK_VALUE(!name.empty() && seen.insert(name).second, caller, ": the names of ", of,
                      " must be different and not empty, got \"", name, "\" twice or an empty name.");
}

}  // namespace bellows::export_detail
