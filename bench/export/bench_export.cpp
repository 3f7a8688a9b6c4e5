// Writes ONNX, TorchScript or .pt2 files of all registered models, and inputs and outputs of eager calls with several sizes.
// check_onnx.py then compares them with ONNX Runtime and OpenVINO, and check_pytorch.py with PyTorch in Python:
//   bench_export DIR [onnx|pytorch] [fp32|bf16|fp16|int8] [MODEL…]
//   .deps/peers/bin/python bench/export/check_onnx.py DIR
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "bellows/core/error.h"
#include "bellows/export.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/registry.h"
#include "bellows/quant/quantize.h"

namespace {

using namespace bellows;

/// What is exported of a model: its axes, the sizes of its example, and the sizes that are compared.
struct Plan {
  DynamicAxes axes{};
  std::map<std::string, std::vector<int64_t>> recorded{};
  std::vector<std::vector<at::Tensor>> compared{};
};

Plan plan_of(const models::ModelEntry& entry, const Model& model) {
  const std::string input = model.inputs()[0].name;
  Plan plan;
  const bool large = entry.name.find("base") != std::string::npos || entry.name == "gpt2";
  const auto add = [&](int64_t batch, int64_t length) {
    plan.compared.push_back(models::example_inputs(entry, batch, length));
  };
  switch (entry.input) {
    case models::InputKind::tokens:
    case models::InputKind::series:
      plan.axes = {{input, {{0, "batch"}, {1, "sequence"}}}};
      plan.recorded["sequence"] = {12, 13, 17};
      add(1, 9);
      add(3, 16);
      add(2, large ? 33 : 40);
      break;
    case models::InputKind::image:
      plan.axes = {{input, {{0, "batch"}}}};
      add(1, 0);
      add(2, 0);
      add(5, 0);
      if (entry.name == "unet" || entry.name.starts_with("resnet")) {
        plan.axes[input][2] = "height";
        plan.axes[input][3] = "width";
        plan.recorded["height"] = {64, 96, 128};
        plan.recorded["width"] = {96, 64, 160};
        plan.compared.clear();
        add(1, 64);
        add(2, 96);
        plan.compared.push_back({plan.compared[0][0].slice(2, 0, 32).repeat({3, 1, 1, 1})});
      }
      break;
    case models::InputKind::arrays:
      add(1, 0);
      add(2, 0);
      add(5, 0);
      for (const ModelInput& one : model.inputs()) plan.axes[one.name] = {{0, "batch"}};
      break;
  }
  return plan;
}

std::vector<at::Tensor> converted(std::vector<at::Tensor> inputs, c10::ScalarType dtype) {
  for (at::Tensor& one : inputs) {
    if (one.is_floating_point()) one = one.to(dtype);
  }
  return inputs;
}

void write_case(const std::string& stem, const Model& model, const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_gradients;
  const auto results = model.forward_all(inputs);
  NamedTensors tensors;
  for (size_t i = 0; i < inputs.size(); ++i)
    tensors.emplace_back("in." + model.inputs()[i].name, inputs[i].contiguous());
  for (size_t i = 0; i < results.size(); ++i)
    tensors.emplace_back("out." + model.outputs()[i], results[i].contiguous());
  io::save_safetensors(stem + ".safetensors", tensors);
}

/// Different values of batch norms and weights, so that a missing operator changes the result.
void randomize(const Model& model) {
  const at::NoGradGuard no_gradients;
  at::manual_seed(7);
  for (const auto& [name, tensor] : model.state_dict()) {
    if (!tensor.is_floating_point()) continue;
    if (name.ends_with("running_var"))
      tensor.uniform_(0.5, 1.5);
    else if (name.ends_with("running_mean"))
      tensor.normal_(0, 0.1);
    else if (tensor.dim() == 1 && name.ends_with("weight"))
      tensor.uniform_(0.8, 1.2);
    else if (tensor.dim() == 1)
      tensor.normal_(0, 0.1);
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void write_onnx(const std::string& stem, const Model& model, const std::vector<at::Tensor>& inputs, const Plan& plan) {
  const auto start = std::chrono::steady_clock::now();
  const OnnxReport report =
      export_onnx(model, inputs, stem + ".onnx", {.dynamic_axes = plan.axes, .sizes = plan.recorded});
  std::cout << stem << ": " << seconds_since(start) << " s\n" << report.to_text() << std::flush;
}

void write_pytorch(const std::string& stem, const Model& model, const std::vector<at::Tensor>& inputs,
                   const Plan& plan) {
  const PytorchOptions options{.dynamic_axes = plan.axes, .sizes = plan.recorded};
  auto start = std::chrono::steady_clock::now();
  const PytorchReport script = export_torchscript(model, inputs, stem + ".torchscript", options);
  std::cout << stem << ": " << seconds_since(start) << " s\n" << script.to_text() << std::flush;
  start = std::chrono::steady_clock::now();
  const PytorchReport pt2 = export_pt2(model, inputs, stem + ".pt2", options);
  std::cout << stem << ": " << seconds_since(start) << " s\n" << pt2.to_text() << std::flush;
  std::ofstream signature(stem + ".signature"), names(stem + ".names");
  for (const ProgramTensor& one : script.inputs) signature << one.name << " ";
  signature << "\n";
  for (const ProgramTensor& one : script.outputs) signature << one.name << " ";
  signature << "\n";
  for (const auto& [name, tensor] : model.state_dict()) names << name << "\n";
}

void run(const std::string& folder, const std::string& format, const std::string& kind,
         const models::ModelEntry& entry) {
  at::manual_seed(1);
  Model model = entry.make(10, entry.input_shape[0] > 0 ? entry.input_shape[0] : 3);
  randomize(model);
  model.eval();
  const Plan plan = plan_of(entry, model);
  const c10::ScalarType dtype = kind == "bf16" ? at::kBFloat16 : kind == "fp16" ? at::kHalf : at::kFloat;
  if (dtype != at::kFloat) model.to(dtype);
  if (kind == "int8") {
    std::vector<std::vector<at::Tensor>> batches = plan.compared;
    model = quant::quantize(model, {.method = quant::Method::static_range}, batches).model;
  }
  const std::string stem = folder + "/" + entry.name + "." + kind;
  const std::vector<at::Tensor> inputs = converted(plan.compared[1], dtype);
  if (format == "onnx")
    write_onnx(stem, model, inputs, plan);
  else
    write_pytorch(stem, model, inputs, plan);
  for (size_t i = 0; i < plan.compared.size(); ++i)
    write_case(stem + "." + std::to_string(i), model, converted(plan.compared[i], dtype));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    std::cerr << "usage: bench_export DIR [onnx|pytorch] [fp32|bf16|fp16|int8] [MODEL…]\n";
    return 2;
  }
  const auto next = [&](const std::vector<std::string>& allowed) {
    if (arguments.empty() || std::find(allowed.begin(), allowed.end(), arguments[0]) == allowed.end())
      return allowed[0];
    const std::string found = arguments[0];
    arguments.erase(arguments.begin());
    return found;
  };
  const std::string folder = arguments[0];
  arguments.erase(arguments.begin());
  std::filesystem::create_directories(folder);
  const std::string format = next({"onnx", "pytorch"}), kind = next({"fp32", "bf16", "fp16", "int8"});
  if (arguments.empty()) arguments = models::registry().names();
  int failures = 0;
  for (const std::string& name : arguments) {
    try {
      run(folder, format, kind, models::registry().at(name));
    } catch (const std::exception& error) {
      std::cout << name << " " << kind << " FAILED: " << user_message(error) << "\n";
      ++failures;
    }
  }
  return failures > 0 ? 1 : 0;
}
