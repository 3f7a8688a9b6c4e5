#include <algorithm>
#include <set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/version.h"
#include "bellows/export/axes.h"
#include "bellows/export/comparison.h"
#include "bellows/export/first_difference.h"
#include "bellows/export/onnx.h"
#include "bellows/export/onnx/file.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/translation.h"
#include "bellows/export/recordings.h"
#include "bellows/export/unchecked_folder.h"

namespace bellows {

namespace {

using export_detail::Forward;
using export_detail::Named;
using export_detail::RecordingOptions;
using export_detail::Recordings;
using export_detail::VariedAxis;
using Inputs = std::vector<at::Tensor>;

RecordingOptions recording_options(const OnnxOptions& options) {
  return {options.input_names, options.output_names, options.dynamic_axes, options.sizes, "export_onnx"};
}

const char* dtype_name(onnx_export::ElementType type) {
  using Type = onnx_export::ElementType;
  switch (type) {
    case Type::float32:
      return "float32";
    case Type::uint8:
      return "uint8";
    case Type::int8:
      return "int8";
    case Type::int16:
      return "int16";
    case Type::int32:
      return "int32";
    case Type::int64:
      return "int64";
    case Type::boolean:
      return "bool";
    case Type::float16:
      return "float16";
    case Type::float64:
      return "float64";
    case Type::bfloat16:
      return "bfloat16";
    case Type::undefined:
      break;
  }
  return "undefined";
}

OnnxReport::Tensor described(const onnx_export::ValueInfo& info) {
  OnnxReport::Tensor result{.name = info.name, .dtype = dtype_name(info.type), .shape = {}};
  for (const onnx_export::AxisSize& axis : info.shape)
    result.shape.push_back(axis.name.empty() ? std::to_string(axis.size) : axis.name);
  return result;
}

OnnxReport report_of(const onnx_export::Graph& graph, const Recordings& recordings) {
  OnnxReport report;
  for (const auto& input : graph.inputs) report.inputs.push_back(described(input));
  for (const auto& output : graph.outputs) report.outputs.push_back(described(output));
  for (const auto& node : graph.nodes) ++report.operators[node.op];
  report.initializers = static_cast<int64_t>(graph.initializers.size());
  report.dynamic_axes = recorded_sizes(recordings);
  std::set<std::pair<size_t, size_t>> varied;
  for (const VariedAxis& axis : recordings.axes) varied.insert(axis.places.begin(), axis.places.end());
  for (size_t i = 0; i < recordings.inputs[0].size(); ++i) {
    const at::Tensor& input = recordings.inputs[0][i];
    for (int64_t axis = 0; input.defined() && axis < input.dim(); ++axis) {
      if (!varied.contains({i, static_cast<size_t>(axis)}))
        report.fixed_axes.push_back({.input = recordings.input_names[i], .axis = axis, .size = input.size(axis)});
    }
  }
  return report;
}

/// Runs a written file. Graphs of bf16 models have fp32 inputs and outputs.
Inputs run_file(const OnnxFunction& run, const Inputs& inputs, const Inputs& expected) {
  const auto widened = [](const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x; };
  Inputs wide;
  for (const at::Tensor& input : inputs) wide.push_back(widened(input));
  Inputs results = run(wide);
  for (size_t i = 0; i < std::min(results.size(), expected.size()); ++i) {
    if (expected[i].scalar_type() == at::kBFloat16) results[i] = results[i].to(at::kBFloat16);
  }
  return results;
}

/// Compares a written file with the function.
void check_file(const std::string& path, const OnnxChecker& checker, const onnx_export::FileOptions& options,
                const Recordings& recordings, const Forward& function, OnnxReport& report) {
  const bool low_precision = export_detail::is_quantized(recordings);
  export_detail::Comparison comparison(recordings, function, "export_onnx", "file in " + checker.name, low_precision);
  const auto check = [&] {
    const OnnxFunction run = checker.load(path);
    comparison.check_all(
        [&](const Inputs& inputs) { return run_file(run, inputs, recordings.calls[0].result_tensors); });
  };
  const auto run_operators = [&](const Recordings& probe) {
    const std::string file = path + ".operators.onnx";
    onnx_export::write_onnx(onnx_export::Translation(probe, "operators").run(), file, options);
    return run_file(checker.load(file), export_detail::given_inputs(probe.inputs[0]), {});
  };
  export_detail::check_operators(recordings, check, run_operators, low_precision);
  report.checked_by = checker.name;
  report.checked_calls = comparison.calls();
  report.largest_difference = comparison.difference();
}

OnnxReport export_recorded(const Forward& function, const Inputs& inputs, std::span<const Named> named,
                           const std::string& path, const OnnxOptions& options, RecordingOptions recording) {
  TORCH_CHECK_VALUE(options.opset == onnx_export::newest_opset(), "export_onnx: expected opset ",
                    onnx_export::newest_opset(), ", got ", options.opset, ".");
  Recordings recordings = record_named(function, inputs, named, std::move(recording));
  const std::string name = options.graph_name.empty() ? "model" : options.graph_name;
  const onnx_export::Graph graph = export_detail::translated(
      recordings, function, named, [&] { return onnx_export::Translation(recordings, name).run(); });
  OnnxReport report = report_of(graph, recordings);
  const onnx_export::FileOptions file{
      .opset = options.opset, .producer_version = BELLOWS_VERSION, .external_data_above = options.external_data_above};
  onnx_export::WrittenFile written;
  if (options.checker) {
    const export_detail::UncheckedFolder folder(path, "export_onnx");
    written = onnx_export::write_onnx(graph, folder.file(), file);
    check_file(folder.file(), *options.checker, file, recordings, function, report);
    folder.keep();
  } else {
    written = onnx_export::write_onnx(graph, path, file);
  }
  report.file = path;
  report.data_file = written.data_file.empty() ? "" : path + ".data";
  report.bytes = written.bytes;
  report.data_bytes = written.data_bytes;
  report.opset = options.opset;
  return report;
}

}  // namespace

OnnxReport export_onnx(const Model& model, const std::vector<at::Tensor>& inputs, const std::string& path,
                       const OnnxOptions& options) {
  RecordingOptions recording = with_names_of(model, inputs.size(), recording_options(options));
  OnnxOptions named = options;
  if (named.graph_name.empty()) named.graph_name = model.name();
  const EvalMode evaluation(model);
  const NamedTensors tensors = model.state_dict();
  const Forward forward = [&model](const Inputs& x) { return model.forward_all(x); };
  return export_recorded(forward, inputs, tensors, path, named, std::move(recording));
}

OnnxReport export_onnx(const OnnxFunction& function, const std::vector<at::Tensor>& inputs, const std::string& path,
                       const OnnxOptions& options) {
  return export_recorded(function, inputs, options.weights, path, options, recording_options(options));
}

std::vector<OnnxMapping> onnx_mappings() {
  std::vector<OnnxMapping> result;
  for (const onnx_export::OperatorMapping& one : onnx_export::all_mappings()) result.push_back({one.aten, one.onnx});
  return result;
}

bool onnx_available() {
  return true;
}

}  // namespace bellows
