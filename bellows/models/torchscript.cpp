#include "bellows/models/torchscript.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "bellows/core/error.h"
#include "bellows/io/archives/zip.h"
#include "bellows/models/exported/class_count.h"
#include "bellows/system/file.h"

namespace bellows::models {

namespace {

class ScriptModel final : public Model::Impl {
 public:
  ScriptModel(torch::jit::Module program, std::string path) : program_(std::move(program)), path_(std::move(path)) {
    const c10::FunctionSchema schema = program_.get_method("forward").function().getSchema();
    for (const c10::Argument& argument : schema.arguments()) {
      if (argument.name() == "self") continue;
      inputs_.push_back({argument.name(), argument.default_value().has_value()});
    }
    if (!schema.returns().empty()) outputs_ = output_names(*schema.returns().front().type());
  }

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    const c10::IValue result = run(inputs);
    if (result.isTensor()) return {result.toTensor()};
    std::vector<at::Tensor> outputs;
    if (result.isTuple()) {
      for (const c10::IValue& element : result.toTupleRef().elements()) {
        if (element.isTensor()) outputs.push_back(element.toTensor());
      }
    }
    TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == outputs_.size(), "TorchScript model ", path_,
                      ": expected forward to return a tensor or a tuple of tensors, got ", result.tagKind(),
                      ". Script a wrapper that returns only the tensors.");
    return outputs;
  }
  std::vector<ModelInput> inputs() const override { return inputs_; }
  std::vector<std::string> outputs() const override { return outputs_; }

  NamedTensors named_parameters() const override { return once_each(program_.named_parameters()); }
  NamedTensors named_buffers() const override { return once_each(program_.named_buffers()); }
  void set_training(bool on) override { program_.train(on); }
  bool training() const override { return program_.is_training(); }
  void to(c10::Device device) override { program_.to(device); }

  ModuleTypes module_types() const override {
    ModuleTypes types;
    for (const auto& item : program_.named_modules()) {
      if (const auto name = item.value.type()->name()) types.emplace_back(item.name, name->name());
    }
    return types;
  }

 private:
  /// The interpreter throws std::runtime_error with a trace of the program.
  c10::IValue run(const std::vector<at::Tensor>& inputs) {
    std::vector<c10::IValue> arguments(inputs.begin(), inputs.end());
    while (!inputs_.empty() && !arguments.empty() && !arguments.back().toTensor().defined()) arguments.pop_back();
    for (c10::IValue& argument : arguments) {
      if (!argument.toTensor().defined()) argument = c10::IValue();
    }
    try {
      return program_.forward(std::move(arguments));
    } catch (const c10::Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      C10_THROW_ERROR(Error, c10::str("TorchScript model ", path_, ": ", error.what()));
    }
  }

  /// The fields of a named tuple; "output_0", "output_1", … for another tuple; else "output".
  static std::vector<std::string> output_names(const c10::Type& type) {
    const auto* tuple = type.castRaw<c10::TupleType>();
    if (!tuple) return {"output"};
    if (tuple->schema()) {
      std::vector<std::string> names;
      for (const c10::Argument& field : tuple->schema()->arguments()) names.push_back(field.name());
      return names;
    }
    std::vector<std::string> names;
    for (size_t i = 0; i < tuple->elements().size(); ++i) names.push_back("output_" + std::to_string(i));
    return names;
  }

  /// Lists tied weights once under their first name, as torch::nn does.
  template <class List>
  static NamedTensors once_each(const List& list) {
    NamedTensors result;
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const auto& item : list) {
      if (seen.insert(item.value.unsafeGetTensorImpl()).second) result.emplace_back(item.name, item.value);
    }
    return result;
  }

  torch::jit::Module program_;
  std::string path_;
  std::vector<ModelInput> inputs_;
  std::vector<std::string> outputs_{"output"};
};

/// Checks the kind of the file first, because errors of TorchScript's reader only describe its internals.
void check_program_file(const std::string& path) {
  const MappedFile file(path);
  const io::ZipReader zip(file.bytes(), path);
  bool program = false, weights = false;
  for (const io::ZipEntry& entry : zip.entries()) {
    if (entry.stored) zip.verify(entry);
    program |= entry.name.ends_with("/constants.pkl");
    weights |= entry.name.ends_with("/data.pkl");
  }
  TORCH_CHECK_VALUE(program || !weights, path,
                    ": this file contains weights (torch.save), not a TorchScript program. Set `weights` to this file "
                    "and `model` to a registered model, or save torch.jit.script(net).");
  TORCH_CHECK_VALUE(program, path, ": expected a TorchScript program (torch.jit.save), found another zip archive.");
}

/// The number of image channels that the program expects: that of its first convolution; 0 if it has none.
int64_t channels_of_program(const Model& model) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.dim() == 4) return parameter.size(1);
  }
  return 0;
}

/// Finds out whether the program predicts a class per pixel, by running it on small images. Programs that accept none of
/// these images count as classifiers of samples.
OutputKind output_of_program(const Model& program, int64_t channels) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor random_state = generator.get_state();  // the program may draw random numbers
  program.eval();
  OutputKind kind = OutputKind::sample;
  for (const int64_t side : {64, 224}) {
    try {
      if (program.forward(at::zeros({1, channels, side, side})).dim() == 4) kind = OutputKind::pixel;
      break;
    } catch (const c10::Error&) {
      continue;  // needs images of another size
    }
  }
  generator.set_state(random_state);
  return kind;
}

Model trainable(const std::string& path, int64_t num_classes) {
  return with_class_count(load_torchscript(path), num_classes, "TorchScript model",
                          "Was it frozen (torch.jit.freeze)? Save the result of torch.jit.script.");
}

}  // namespace

Model load_torchscript(const std::string& path) {
  check_program_file(path);
  try {
    return Model(path, std::make_shared<ScriptModel>(torch::jit::load(path, c10::Device(c10::kCPU)), path));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, path, ": this TorchScript program cannot be loaded: ", user_message(error));
  }
}

ModelEntry torchscript_entry(const std::string& path) {
  const Model program = load_torchscript(path);
  ModelEntry entry{path, "TorchScript program", {channels_of_program(program), 0, 0}, [path](int64_t outputs, int64_t) {
                     return trainable(path, outputs);
                   }};
  const std::vector<ModelInput> inputs = program.inputs();
  const auto needed = std::ranges::count_if(inputs, [](const ModelInput& input) { return !input.optional; });
  if (needed < 2) {
    if (entry.input_shape[0] > 0) entry.output = output_of_program(program, entry.input_shape[0]);
    return entry;
  }
  entry.input = InputKind::arrays;
  for (const ModelInput& input : inputs) {
    if (!input.optional) entry.inputs.push_back({input.name});
  }
  return entry;
}

bool is_torchscript_path(const std::string& name) {
  if (name.ends_with(".json") || name.ends_with(".pt2")) return false;
  for (const char* ending : {".pt", ".pth", ".ts", ".torchscript"}) {
    if (name.ends_with(ending)) return true;
  }
  return name.find('/') != std::string::npos;
}

}  // namespace bellows::models
