#include "bellows/models/torchscript.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <filesystem>
#include <unordered_set>

#include "bellows/core/error.h"
#include "bellows/io/archives/zip.h"
#include "bellows/system/file.h"

namespace bellows::models {

namespace {

class ScriptModel final : public Model::Impl {
 public:
  ScriptModel(torch::jit::Module program, std::string path) : program_(std::move(program)), path_(std::move(path)) {}

  at::Tensor forward(const at::Tensor& input) override {
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    const c10::IValue result = run(input);
    TORCH_CHECK_VALUE(result.isTensor(), "TorchScript model ", path_, ": expected forward to return a tensor, got ",
                      result.tagKind(), ". Script a wrapper that returns the scores alone.");
    return result.toTensor();
  }

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
  /// The interpreter throws std::runtime_error with the program's own trace.
  c10::IValue run(const at::Tensor& input) {
    try {
      return program_.forward({input});
    } catch (const c10::Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      C10_THROW_ERROR(Error, c10::str("TorchScript model ", path_, ": ", error.what()));
    }
  }

  /// Tied weights stand under the first of their names, as in torch::nn.
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
};

/// Says what else a file is before TorchScript's reader says something about its own inside.
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
                    ": these are weights (torch.save), not a TorchScript program. Give them "
                    "as `weights` and the model by its name, or write torch.jit.script(net).save(…).");
  TORCH_CHECK_VALUE(program, path, ": expected a TorchScript program (torch.jit.save), found another zip archive.");
}

/// The channels of the images that a program was made for: what its first convolution takes; 0 when it has none.
int64_t channels_of_program(const Model& model) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.dim() == 4) return parameter.size(1);
  }
  return 0;
}

/// Another number of scores than the data have classes is said in words rather than by a loss function.
class WithClasses final : public Model::Impl {
 public:
  WithClasses(Model inner, int64_t classes) : inner_(std::move(inner)), classes_(classes) {}

  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor scores = inner_.forward(input);
    TORCH_CHECK_VALUE(scores.dim() == 2 && scores.size(1) == classes_, "TorchScript model ", inner_.name(),
                      ": expected scores of shape [batch, ", classes_, "], got ", scores.sizes(), " for an input of ",
                      input.sizes(), ". Set num_classes to what the program gives.");
    return scores;
  }
  NamedTensors named_parameters() const override { return inner_.named_parameters(); }
  NamedTensors named_buffers() const override { return inner_.named_buffers(); }
  void set_training(bool on) override { inner_.train(on); }
  bool training() const override { return inner_.training(); }
  void to(c10::Device device) override { inner_.to(device); }
  ModuleTypes module_types() const override { return inner_.module_types(); }

 private:
  Model inner_;
  int64_t classes_;
};

Model trainable(const std::string& path, int64_t num_classes) {
  Model model = load_torchscript(path);
  bool any = false;
  for (const auto& [name, parameter] : model.named_parameters()) any |= parameter.requires_grad();
  TORCH_CHECK_VALUE(any, "TorchScript model ", path,
                    ": nothing in it can be trained: it has no parameters that require "
                    "gradients. Was it frozen (torch.jit.freeze)? Save it as torch.jit.script made it.");
  return Model(model.name(), std::make_shared<WithClasses>(model, num_classes));
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
  const int64_t channels = channels_of_program(load_torchscript(path));
  return {path, "TorchScript program", {channels, 0, 0}, [path](int64_t num_classes, int64_t) {
            return trainable(path, num_classes);
          }};
}

bool is_torchscript_path(const std::string& name) {
  for (const char* ending : {".pt", ".pth", ".ts", ".torchscript"}) {
    if (name.ends_with(ending)) return true;
  }
  return name.find('/') != std::string::npos;
}

}  // namespace bellows::models
