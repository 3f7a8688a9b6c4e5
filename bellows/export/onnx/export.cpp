#include <algorithm>
#include <set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/version.h"
#include "bellows/export/axes.h"
#include "bellows/export/onnx.h"
#include "bellows/export/onnx/file.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/translation.h"
#include "bellows/export/recordings.h"

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

/// Translates the recordings. If this fails, the first call is recorded again with the places in the user's code, which
/// are slow to find.
onnx_export::Graph translated(Recordings& recordings, const std::string& name, const Forward& function,
                              std::span<const Named> named) {
  try {
    return onnx_export::Translation(recordings, name).run();
  } catch (const c10::ValueError&) {
    recordings.calls[0] = export_detail::record_call(function, recordings.inputs[0], named, true);
    return onnx_export::Translation(recordings, name).run();
  }
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

OnnxReport export_recorded(const Forward& function, const Inputs& inputs, std::span<const Named> named,
                           const std::string& path, const OnnxOptions& options, RecordingOptions recording) {
  TORCH_CHECK_VALUE(options.opset == onnx_export::newest_opset(), "export_onnx: expected opset ",
                    onnx_export::newest_opset(), ", got ", options.opset, ".");
  Recordings recordings = record_named(function, inputs, named, std::move(recording));
  const onnx_export::Graph graph =
      translated(recordings, options.graph_name.empty() ? "model" : options.graph_name, function, named);
  OnnxReport report = report_of(graph, recordings);
  const onnx_export::WrittenFile written =
      onnx_export::write_onnx(graph, path,
                              {.opset = options.opset,
                               .producer_version = BELLOWS_VERSION,
                               .external_data_above = options.external_data_above});
  report.file = path;
  report.data_file = written.data_file;
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
