#include "cli/deploy/candidates.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/export/onnx.h"
#include "bellows/export/program.h"
#include "bellows/export/pytorch.h"
#include "bellows/models/registry.h"
#include "bellows/quant/quantize.h"
#include "bellows/runtime/backend.h"
#include "bellows/runtime/onnx_checker.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/inference/quantization.h"
#include "cli/interrupt.h"
#include "cli/trained_options.h"

namespace bellows::cli {

namespace {

namespace fs = std::filesystem;

constexpr int64_t recorded_batch = 2, calibration_samples = 256;

bool is_model_file(const std::string& path) {
  return fs::is_regular_file(path) &&
         std::ranges::any_of(runtime::backends(), [&](const auto* one) { return one->accepts(path); });
}

/// Copies a file that the user passed, with the second file of ONNX weights if there is one.
Candidates exported_file(const std::string& path, const std::string& folder) {
  const fs::path source(path);
  const std::string copy = folder + "/file/model" + source.extension().string();
  fs::create_directories(folder + "/file");
  fs::copy_file(source, copy);
  if (fs::exists(path + ".data"))
    fs::copy_file(path + ".data", folder + "/file/" + source.filename().string() + ".data");
  return {.name = source.stem().string(), .files = {{.path = copy}}};
}

/// Rows of the held-out data, or example inputs if there is no data.
std::vector<at::Tensor> example_of(Candidates& candidates, const DeployArguments& arguments, int64_t rows) {
  const train::TrainedModel& trained = *candidates.trained;
  try {
    auto inputs =
        train::evaluation_inputs(trained, {.data = arguments.data, .split = arguments.split, .batch_size = rows}, 1);
    candidates.has_data = true;
    return inputs.at(0);
  } catch (const c10::ValueError& error) {
    if (!arguments.data.empty() || !trained.job.recipe.data.empty()) throw;
  }
  models::ModelEntry entry = trained.job.model;
  if (const int64_t width = trained.job.input_width(); width > 0) entry.input_shape[0] = width;
  int64_t length = arguments.length;
  if (length == 0 && entry.input == models::InputKind::image) length = trained.job.recipe.image_size;
  return models::example_inputs(entry, rows, length);
}

/// The batch axis may vary, and the length of texts and series.
DynamicAxes axes_of(const train::TrainedModel& trained, const std::vector<at::Tensor>& inputs) {
  const auto kind = trained.job.model.input;
  const bool has_length = kind == models::InputKind::tokens || kind == models::InputKind::series;
  const auto infos = trained.model.inputs();
  DynamicAxes axes;
  for (size_t i = 0; i < inputs.size() && i < infos.size(); ++i) {
    if (!inputs[i].defined()) continue;
    axes[infos[i].name][0] = "batch";
    if (has_length && inputs[i].dim() > 1) axes[infos[i].name][1] = "length";
  }
  return axes;
}

std::vector<runtime::TensorInfo> infos_of(const std::vector<ProgramTensor>& tensors) {
  std::vector<runtime::TensorInfo> infos;
  for (const ProgramTensor& tensor : tensors) {
    runtime::TensorInfo info{.name = tensor.name, .dtype = tensor.dtype};
    for (const std::string& size : tensor.sizes) {
      const bool fixed = size.find_first_not_of("0123456789") == std::string::npos;
      info.sizes.push_back(fixed ? std::stoll(size) : -1);  // a name, or an expression of names
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

/// Writes the files of one trained model.
class Converter {
 public:
  Converter(Candidates& candidates, const DeployArguments& arguments, std::string folder)
      : candidates_(candidates), arguments_(arguments), folder_(std::move(folder)) {
    inputs_ = example_of(candidates, arguments, recorded_batch);
    axes_ = axes_of(*candidates.trained, inputs_);
  }

  void run() {
    const Model& model = candidates_.trained->model;
    add("fp32", "torchscript", "pt", [&](const std::string& path) {
      const PytorchReport report = export_torchscript(model, inputs_, path, {.dynamic_axes = axes_});
      candidates_.described_inputs = infos_of(report.inputs);
      candidates_.described_outputs = infos_of(report.outputs);
    });
    add("fp32", "onnx", "onnx", [&](const std::string& path) { write_onnx(model, path); });
    if (!arguments_.triton) {
      add("fp32", "bellows", "program", [&](const std::string& path) { write_program(model, path, {}); });
      add("bf16", "bellows", "program", [&](const std::string& path) { write_program(model, path, at::kBFloat16); });
    }
    if (!arguments_.no_int8) add_int8();
  }

 private:
  void add(const std::string& dtype, const std::string& format, const std::string& extension,
           const std::function<void(const std::string&)>& write) {
    if (Interrupt::requested()) return;
    CandidateFile file{.dtype = dtype, .format = format};
    const std::string folder = folder_ + "/" + dtype + "-" + format;
    log_info("Writing ", dtype, " ", format);
    try {
      fs::create_directories(folder);
      write(folder + "/model." + extension);
      file.path = folder + "/model." + extension;
    } catch (const std::exception& error) {
      file.problem = user_message(error);
    }
    candidates_.files.push_back(std::move(file));
  }

  void write_onnx(const Model& model, const std::string& path) const {
    export_onnx(model, inputs_, path, {.dynamic_axes = axes_, .checker = runtime::onnx_checker()});
  }
  void write_program(const Model& model, const std::string& path, std::optional<c10::ScalarType> autocast) const {
    export_program(model, inputs_, path, {.dynamic_axes = axes_, .autocast = autocast});
  }

  void add_int8() {
    std::optional<quant::Quantized> quantized;
    const auto once = [&]() -> const Model& {
      if (!quantized) {
        const auto samples = train::calibration_inputs(*candidates_.trained, calibration_samples);
        quantized = quant::quantize(candidates_.trained->model, {}, samples);
      }
      return quantized->model;
    };
    add("int8", "onnx", "onnx", [&](const std::string& path) { write_onnx(once(), path); });
    if (!arguments_.triton)
      add("int8", "bellows", "program", [&](const std::string& path) { write_program(once(), path, {}); });
  }

  Candidates& candidates_;
  const DeployArguments& arguments_;
  std::string folder_;
  std::vector<at::Tensor> inputs_{};
  DynamicAxes axes_{};
};

}  // namespace

Candidates make_candidates(const DeployArguments& given, const std::string& folder) {
  DeployArguments arguments = given;
  Candidates candidates;
  if (!arguments.subject.empty()) {
    if (!arguments.run.empty() || !arguments.model.empty())
      throw UsageError("MODEL cannot be combined with --run or --model.");
    if (arguments.weights.empty() && is_model_file(arguments.subject)) {
      candidates = exported_file(arguments.subject, folder);
    } else {
      (fs::is_directory(arguments.subject) ? arguments.run : arguments.model) = arguments.subject;
    }
  }
  if (candidates.files.empty()) {
    const train::Recipe recipe = trained_recipe(arguments);
    candidates.trained = load_trained_model(arguments, recipe);
    candidates.name = candidates.trained->model.name();
    Converter(candidates, arguments, folder).run();
    candidates.inputs = example_of(candidates, arguments, arguments.batch_size);
  }
  if (!arguments.name.empty()) candidates.name = arguments.name;
  return candidates;
}

}  // namespace bellows::cli
