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
               const std::string& input_name, const RecordingOptions& options) {
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

void set_sizes(std::vector<VariedAxis>& axes, const RecordingOptions& options) {
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

std::vector<VariedAxis> varied_axes(const std::vector<at::Tensor>& inputs, const std::vector<std::string>& names,
                                    const RecordingOptions& options) {
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

}  // namespace

Recordings record_named(const Forward& function, std::vector<at::Tensor> inputs, std::span<const Named> named,
                        RecordingOptions options) {
  for (at::Tensor& input : inputs) {
    if (input.defined()) input = input.detach();
  }
  if (options.input_names.empty()) options.input_names = numbered_names("input", inputs.size());
  check_names(options.input_names, inputs.size(), "inputs", options.caller);
  const std::vector<VariedAxis> axes = varied_axes(inputs, options.input_names, options);
  Recordings recordings = record_sizes(function, inputs, axes, named);
  const size_t results = recordings.calls[0].results.size();
  TORCH_CHECK_VALUE(results > 0, options.caller, ": the function returns no tensor.");
  if (options.output_names.empty()) options.output_names = numbered_names("output", results);
  check_names(options.output_names, results, "outputs", options.caller);
  recordings.axes = axes;
  recordings.input_names = std::move(options.input_names);
  recordings.output_names = std::move(options.output_names);
  return recordings;
}

RecordingOptions with_names_of(const Model& model, size_t inputs, RecordingOptions options) {
  const std::vector<ModelInput> declared = model.inputs();
  TORCH_CHECK_VALUE(inputs > 0 && inputs <= declared.size(), options.caller, ": the model ", model.name(), " has ",
                    declared.size(), " inputs, got ", inputs, " example inputs.");
  if (options.input_names.empty()) {
    options.input_names.reserve(inputs);
    for (size_t i = 0; i < inputs; ++i) options.input_names.push_back(declared[i].name);
  }
  const EvalMode evaluation(model);  // in training mode, a model with auxiliary outputs has more outputs
  if (options.output_names.empty()) options.output_names = model.outputs();
  return options;
}

ProgramTensor described(const std::string& name, const Recordings& recordings,
                        const std::function<at::Tensor(size_t recording)>& tensor_of) {
  const at::Tensor first = tensor_of(0);
  ProgramTensor made{.name = name, .dtype = first.scalar_type()};
  for (int64_t axis = 0; axis < first.dim(); ++axis) {
    Varied size;
    for (size_t call = 0; call < recordings.calls.size(); ++call) size.values.push_back(tensor_of(call).size(axis));
    const auto expression = express(size, recordings.symbols);
    made.sizes.push_back(expression ? expression->text(recordings.symbols) : "?");
  }
  return made;
}

std::map<std::string, std::vector<int64_t>> recorded_sizes(const Recordings& recordings) {
  std::map<std::string, std::vector<int64_t>> all;
  for (const Symbol& symbol : recordings.symbols) {
    std::vector<int64_t>& sizes = all[symbol.name];
    for (const int64_t size : symbol.sizes.values) {
      if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
    }
  }
  return all;
}

}  // namespace bellows::export_detail
