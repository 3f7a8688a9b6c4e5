#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/export/onnx.h"
#include "bellows/export/program.h"
#include "bellows/export/pytorch.h"
#include "bellows/models/exported/exported_model.h"
#include "bellows/models/registry.h"
#include "bellows/runtime/onnx_checker.h"
#include "bellows/train/inference/trained_model.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/option_values.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_options.h"

namespace bellows::cli {

namespace {

using nlohmann::ordered_json;

/// "ids:1=tokens" names axis 1 of the input "ids"; "1=tokens" names axis 1 of all inputs that have one.
DynamicAxes axes_of(const std::vector<std::string>& texts, const Model& model, const std::vector<at::Tensor>& inputs) {
  DynamicAxes axes;
  for (const std::string& text : texts) {
    const auto [place, name] = named_value(text, "--dynamic", "AXIS=NAME or INPUT:AXIS=NAME");
    const size_t colon = place.rfind(':');
    const int64_t axis = integer_value(colon == std::string::npos ? place : place.substr(colon + 1), 0, "--dynamic");
    if (colon != std::string::npos) {
      axes[place.substr(0, colon)][axis] = name;
      continue;
    }
    const auto all = model.inputs();
    bool found = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (axis >= inputs[i].dim()) continue;
      axes[all[i].name][axis] = name;
      found = true;
    }
    if (!found)
      throw UsageError("--dynamic: no input of the model has an axis " + std::to_string(axis) +
                       ". Axes are numbered from 0.");
  }
  return axes;
}

std::map<std::string, std::vector<int64_t>> sizes_of(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<int64_t>> result;
  for (const std::string& text : texts) {
    auto [name, numbers] = named_value(text, "--sizes", "NAME=A,B,C");
    for (size_t comma = 0; comma != std::string::npos; numbers.erase(0, comma + 1)) {
      comma = numbers.find(',');
      result[name].push_back(integer_value(numbers.substr(0, comma), 0, "--sizes"));
      if (comma == std::string::npos) break;
    }
  }
  return result;
}

/// The argument MODEL stands for --run if it is a folder, and otherwise for --model.
ExportArguments with_subject(ExportArguments arguments) {
  if (arguments.subject.empty()) return arguments;
  if (!arguments.run.empty() || !arguments.model.empty())
    throw UsageError("MODEL cannot be combined with --run or --model.");
  (std::filesystem::is_directory(arguments.subject) ? arguments.run : arguments.model) = arguments.subject;
  return arguments;
}

/// The example inputs, in the sizes of the data.
std::vector<at::Tensor> example_of(const train::TrainedModel& trained, const ExportArguments& arguments) {
  constexpr int64_t example_batch = 2;
  models::ModelEntry entry = trained.job.model;
  const int64_t width = trained.job.input_width(), most = trained.job.max_length();
  if (width > 0) entry.input_shape[0] = width;
  int64_t length = arguments.length;
  if (length == 0 && entry.input == models::InputKind::image) length = trained.job.recipe.image_size;
  if (length == 0 && entry.input == models::InputKind::tokens && most > 0) length = std::min<int64_t>(most, 64);
  return models::example_inputs(entry, arguments.batch_size > 0 ? arguments.batch_size : example_batch, length);
}

ordered_json tensors_json(const std::vector<OnnxReport::Tensor>& tensors) {
  ordered_json result = ordered_json::array();
  for (const OnnxReport::Tensor& one : tensors)
    result.push_back({{"name", one.name}, {"dtype", one.dtype}, {"shape", one.shape}});
  return result;
}

ordered_json report_json(const OnnxReport& report) {
  ordered_json fixed = ordered_json::array();
  for (const OnnxReport::FixedAxis& axis : report.fixed_axes)
    fixed.push_back({{"input", axis.input}, {"axis", axis.axis}, {"size", axis.size}});
  return {{"file", report.file},
          {"bytes", report.bytes},
          {"data_file", report.data_file},
          {"data_bytes", report.data_bytes},
          {"opset", report.opset},
          {"inputs", tensors_json(report.inputs)},
          {"outputs", tensors_json(report.outputs)},
          {"dynamic_axes", report.dynamic_axes},
          {"fixed_axes", std::move(fixed)},
          {"operators", report.operators},
          {"initializers", report.initializers},
          {"check",
           {{"library", report.checked_by},
            {"calls", report.checked_calls},
            {"largest_difference", report.largest_difference}}}};
}

ordered_json tensors_json(const std::vector<ProgramTensor>& tensors) {
  ordered_json result = ordered_json::array();
  for (const ProgramTensor& one : tensors)
    result.push_back({{"name", one.name}, {"dtype", c10::getDtypeNames(one.dtype).first}, {"shape", one.sizes}});
  return result;
}

ordered_json report_json(const ProgramReport& report) {
  return {{"file", report.file},
          {"bytes", report.bytes},
          {"weight_bytes", report.weight_bytes},
          {"packed_bytes", report.packed_bytes},
          {"inputs", tensors_json(report.inputs)},
          {"outputs", tensors_json(report.outputs)},
          {"dynamic_axes", report.dynamic_axes},
          {"operators", report.operators},
          {"kernel_libraries", report.kernels}};
}

ordered_json report_json(const PytorchReport& report) {
  return {{"file", report.file},
          {"format", report.format},
          {"bytes", report.bytes},
          {"inputs", tensors_json(report.inputs)},
          {"outputs", tensors_json(report.outputs)},
          {"dynamic_axes", report.dynamic_axes},
          {"operators", report.operators},
          {"parameters", report.parameters},
          {"buffers", report.buffers},
          {"constants", report.constants},
          {"check", {{"calls", report.checked_calls}, {"largest_difference", report.largest_difference}}}};
}

/// Prints a report, and writes it as JSON.
template <class Report>
void show(const Report& report, const ExportArguments& arguments) {
  if (arguments.json != "-") Terminal().print(report.to_text());
  write_json(arguments.json, json_text(report_json(report)));
}

/// Options that all formats have.
template <class Options>
Options options_of(const ExportArguments& arguments, const Model& model, const std::vector<at::Tensor>& inputs) {
  Options options{.sizes = sizes_of(arguments.sizes)};
  if (!arguments.dynamic.empty()) options.dynamic_axes = axes_of(arguments.dynamic, model, inputs);
  return options;
}

/// Writes a program of torch.export again, with the trained weights.
int copy_program(const Model& model, const ExportArguments& arguments) {
  if (!arguments.json.empty()) throw UsageError("--json is not possible: a program of torch.export is only copied.");
  save_exported(model, arguments.output);
  Terminal().print(c10::str("Wrote ", arguments.output, ": the program ", model.name(), " with the trained weights"));
  return exit_done;
}

}  // namespace

int run_export(const ExportArguments& given) {
  const ExportArguments arguments = with_subject(given);
  if (arguments.output.empty()) throw UsageError("expected --output FILE, the name of the file to write.");
  if (arguments.format != "onnx" && arguments.external_data_above > 0)
    throw UsageError("--external-data-above requires --format onnx.");
  const bool is_pytorch = arguments.format == "pt2" || arguments.format == "torchscript";
  if (arguments.no_check && arguments.format == "bellows")
    throw UsageError("--no-check requires --format onnx, pt2 or torchscript.");
  check_output_file(arguments.json);
  check_output_file(arguments.output);
  const train::Recipe recipe = trained_recipe(arguments);
  const Interrupt interrupt("nothing is saved");
  const train::TrainedModel trained = load_trained_model(arguments, recipe);
  if (arguments.format == "pt2" && models::is_exported_model(trained.model))
    return copy_program(trained.model, arguments);
  const std::vector<at::Tensor> inputs = example_of(trained, arguments);
  log_info("Recording ", trained.model.name(), " with several sizes of its inputs");
  if (arguments.format == "bellows") {
    const auto options = options_of<ProgramOptions>(arguments, trained.model, inputs);
    show(export_program(trained.model, inputs, arguments.output, options), arguments);
    return exit_done;
  }
  if (is_pytorch) {
    auto options = options_of<PytorchOptions>(arguments, trained.model, inputs);
    options.check = !arguments.no_check;
    const bool pt2 = arguments.format == "pt2";
    show(pt2 ? export_pt2(trained.model, inputs, arguments.output, options)
             : export_torchscript(trained.model, inputs, arguments.output, options),
         arguments);
    return exit_done;
  }
  auto options = options_of<OnnxOptions>(arguments, trained.model, inputs);
  if (arguments.external_data_above > 0) options.external_data_above = arguments.external_data_above;
  if (!arguments.no_check) options.checker = runtime::onnx_checker();
  if (!arguments.no_check && !options.checker)
    log_warn("The file will not be run. To check it, ", runtime::backend("onnxruntime").missing());
  show(export_onnx(trained.model, inputs, arguments.output, options), arguments);
  return exit_done;
}

}  // namespace bellows::cli
