#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/export/aten/pt2.h"
#include "bellows/export/aten/run.h"
#include "bellows/export/aten/torchscript.h"
#include "bellows/export/aten/translation.h"
#include "bellows/export/axes.h"
#include "bellows/export/comparison.h"
#include "bellows/export/first_difference.h"
#include "bellows/export/pytorch.h"
#include "bellows/export/unchecked_folder.h"

namespace bellows {

namespace {

using aten_export::AtenGraph;
using aten_export::NamedWeights;
using export_detail::Comparison;
using export_detail::Forward;
using export_detail::given_inputs;
using export_detail::RecordingOptions;
using export_detail::Recordings;
using Inputs = std::vector<at::Tensor>;

enum class Format { torchscript, pt2 };

/// Inputs are arguments of a Python function.
void check_input_names(const std::vector<std::string>& names, const char* caller) {
  static const std::set<std::string> reserved{
      "self",  "None",  "True",     "False", "and",    "as",   "assert", "async",  "await",
      "break", "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",
      "for",   "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal",
      "not",   "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
  for (const std::string& name : names) {
    const auto allowed = [](char one) { return std::isalnum(static_cast<unsigned char>(one)) != 0 || one == '_'; };
    const bool valid = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
                       std::all_of(name.begin(), name.end(), allowed) && !reserved.contains(name);
    TORCH_CHECK_VALUE(valid, caller, ": the input name \"", name,
                      "\" is no name of a Python variable. Set `input_names` to names of letters, digits and "
                      "underscores.");
  }
}

struct Exporter {
  Format format;
  const Forward& function;
  const NamedWeights& weights;
  const char* caller;

  PytorchReport run(const Inputs& inputs, const std::string& path, bool check, RecordingOptions options) const {
    for (const at::Tensor& input : inputs)
      TORCH_CHECK_VALUE(!input.defined() || input.device().is_cpu(), caller, ": expected CPU tensors as inputs.");
    Recordings recordings = record_named(function, inputs, weights.tensors, std::move(options));
    check_input_names(recordings.input_names, caller);
    const AtenGraph graph = export_detail::translated(recordings, function, weights.tensors, [&] {
      return aten_export::Translation(recordings, weights, caller).run();
    });
    PytorchReport report = described(graph, recordings);
    const export_detail::UncheckedFolder folder(path, caller);
    write(graph, recordings, folder.file());
    if (check) compare_file(recordings, folder.file(), report);
    folder.keep();
    report.file = path;
    report.bytes = std::filesystem::file_size(path);
    return report;
  }

 private:
  void write(const AtenGraph& graph, const Recordings& recordings, const std::string& path) const {
    if (format == Format::torchscript) return aten_export::write_torchscript(graph, path);
    std::vector<Inputs> all;
    for (const Inputs& one : recordings.inputs) all.push_back(given_inputs(one));
    const auto facts = aten_export::trace_graph(graph, all);
    aten_export::write_pt2(graph, facts, all[0], path);
  }

  PytorchReport described(const AtenGraph& graph, const Recordings& recordings) const {
    PytorchReport report{.format = format == Format::pt2 ? "pt2" : "TorchScript"};
    for (size_t i = 0; i < recordings.inputs[0].size(); ++i) {
      if (recordings.inputs[0][i].defined())
        report.inputs.push_back(export_detail::described(recordings.input_names[i], recordings,
                                                         [&](size_t call) { return recordings.inputs[call][i]; }));
    }
    for (size_t i = 0; i < recordings.output_names.size(); ++i)
      report.outputs.push_back(export_detail::described(recordings.output_names[i], recordings, [&](size_t call) {
        return recordings.calls[call].result_tensors[i];
      }));
    report.dynamic_axes = recorded_sizes(recordings);
    report.operators = graph.operators();
    for (const aten_export::Weight& weight : graph.weights) ++(weight.parameter ? report.parameters : report.buffers);
    report.constants = static_cast<int64_t>(graph.constants.size());
    return report;
  }

  Forward loaded(const std::string& path) const {
    return format == Format::pt2 ? aten_export::load_pt2(path) : aten_export::load_torchscript(path);
  }

  void compare_file(const Recordings& recordings, const std::string& path, PytorchReport& report) const {
    const bool low_precision = export_detail::is_quantized(recordings);
    Comparison comparison(recordings, function, caller, "file", low_precision);
    const auto run_operators = [&](const Recordings& probe) {
      const std::string file = path + ".operators";
      write(aten_export::Translation(probe, weights, caller).run(), probe, file);
      return loaded(file)(given_inputs(probe.inputs[0]));
    };
    export_detail::check_operators(
        recordings, [&] { comparison.check_all(loaded(path)); }, run_operators, low_precision);
    report.checked_calls = comparison.calls();
    report.largest_difference = comparison.difference();
  }
};

RecordingOptions recording_options(const PytorchOptions& options, const char* caller) {
  return {options.input_names, options.output_names, options.dynamic_axes, options.sizes, caller};
}

const char* caller_of(Format format) {
  return format == Format::pt2 ? "export_pt2" : "export_torchscript";
}

PytorchReport exported(Format format, const Model& model, const Inputs& inputs, const std::string& path,
                       const PytorchOptions& options) {
  const char* caller = caller_of(format);
  RecordingOptions recording = with_names_of(model, inputs.size(), recording_options(options, caller));
  const EvalMode evaluation(model);
  NamedWeights weights{.tensors = model.state_dict()};
  for (const auto& [name, tensor] : model.named_parameters()) weights.parameters.insert(name);
  const Forward forward = [&model](const Inputs& x) { return model.forward_all(x); };
  return Exporter{format, forward, weights, caller}.run(inputs, path, options.check, std::move(recording));
}

PytorchReport exported(Format format, const Forward& function, const Inputs& inputs, const std::string& path,
                       const PytorchOptions& options) {
  const char* caller = caller_of(format);
  NamedWeights weights{.tensors = options.weights};
  for (const auto& [name, tensor] : options.weights) {
    if (tensor.requires_grad()) weights.parameters.insert(name);
  }
  return Exporter{format, function, weights, caller}.run(inputs, path, options.check,
                                                         recording_options(options, caller));
}

}  // namespace

PytorchReport export_torchscript(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                                 const PytorchOptions& options) {
  return exported(Format::torchscript, model, inputs, path, options);
}

PytorchReport export_torchscript(const std::function<Inputs(const Inputs&)>& function, const Inputs& inputs,
                                 const std::string& path, const PytorchOptions& options) {
  return exported(Format::torchscript, function, inputs, path, options);
}

PytorchReport export_pt2(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                         const PytorchOptions& options) {
  return exported(Format::pt2, model, inputs, path, options);
}

PytorchReport export_pt2(const std::function<Inputs(const Inputs&)>& function, const Inputs& inputs,
                         const std::string& path, const PytorchOptions& options) {
  return exported(Format::pt2, function, inputs, path, options);
}

}  // namespace bellows
