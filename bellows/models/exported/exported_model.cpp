#include "bellows/models/exported/exported_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/models/exported/archive.h"
#include "bellows/models/exported/entry.h"
#include "bellows/models/exported/program.h"
#include "bellows/models/exported/tensors.h"

namespace bellows {

namespace {

using models::exported::ExportedArchive;
using models::exported::ExportedInput;
using models::exported::ExportedProgram;
using models::exported::ExportedTensors;

/// A program with its tensors.
struct LoadedExport {
  LoadedExport(const ExportedArchive& archive, const std::string& name)
      : program(archive.text("models/" + name + ".json"), archive.path() + ", program " + name),
        tensors(archive, name) {}

  ExportedProgram program;
  ExportedTensors tensors;
};

class ExportedModel final : public Model::Impl {
 public:
  ExportedModel(std::shared_ptr<const ExportedArchive> archive, const std::vector<std::string>& names)
      : archive_(std::move(archive)) {
    for (const std::string& name : names) programs_.push_back(std::make_unique<LoadedExport>(*archive_, name));
    if (programs_.size() == 2) check_pair();
    home_ = first().tensors.exported_device();
    for (const auto& one : programs_) {
      one->program.bind(one->tensors);
      one->program.change_device(home_, c10::kCPU);
    }
    home_ = c10::kCPU;
    training_ = first().program.modes().exported_in_training;
    list_tensors();
    warn_about_unchecked();
  }

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    return current().program.forward(inputs, training_);
  }
  std::vector<ModelInput> inputs() const override {
    std::vector<ModelInput> list;
    for (const ExportedInput& input : first().program.checks().inputs())
      list.push_back({input.name, input.is_constant});
    return list;
  }
  std::vector<std::string> outputs() const override { return first().program.output_names(); }
  NamedTensors named_parameters() const override { return parameters_; }
  NamedTensors named_buffers() const override { return buffers_; }
  ModuleTypes module_types() const override { return first().program.module_types(); }

  void set_training(bool on) override {
    if (on == training_) return;
    const auto& modes = first().program.modes();
    const std::string& problem = on ? modes.no_training : modes.no_evaluation;
    TORCH_CHECK_VALUE(problem.empty() || (!on && programs_.size() == 2), archive_->path(), ": ", problem);
    training_ = on;
  }
  bool training() const override { return training_; }

  void to(c10::Device device) override {
    for (const auto& one : programs_) {
      one->tensors.to(device);
      one->program.change_device(home_, device);
    }
    home_ = device;
  }
  void to(c10::ScalarType dtype) override {
    for (const NamedTensors& tensors : {parameters_, buffers_}) {
      for (const auto& [name, tensor] : tensors) {
        TORCH_CHECK_VALUE(!tensor.is_floating_point() || tensor.scalar_type() == dtype, archive_->path(),
                          ": the program contains dtypes, so ", name, " cannot become ", dtype,
                          ". Use autocast, or export the model in this dtype.");
      }
    }
  }

  void save(const std::string& path) const {
    std::map<std::string, at::Tensor> files;
    for (const auto& one : programs_) one->tensors.add_files(*archive_, files);
    io::ZipWriter zip(path);
    for (const io::ZipEntry& entry : archive_->entries()) {
      const auto found = files.find(entry.name.substr(std::min(archive_->root().size(), entry.name.size())));
      if (found == files.end()) {
        zip.add(entry.name, entry.data);
      } else {
        const auto* data = static_cast<const std::byte*>(found->second.const_data_ptr());
        zip.add(entry.name, io::ByteSpan(data, found->second.nbytes()));
      }
    }
    zip.close();
  }

  const ExportedProgram& program() const { return first().program; }

 private:
  const LoadedExport& first() const { return *programs_.front(); }
  const LoadedExport& current() const { return *programs_[!training_ && programs_.size() == 2 ? 1 : 0]; }

  /// The two programs need the same tensors, inputs and outputs.
  void check_pair() const {
    programs_[1]->tensors.share(programs_[0]->tensors);
    const auto names = [](const LoadedExport& one) {
      std::vector<std::string> all = one.program.output_names();
      for (const ExportedInput& input : one.program.checks().inputs()) all.push_back(input.name);
      return all;
    };
    TORCH_CHECK_VALUE(names(*programs_[0]) == names(*programs_[1]), archive_->path(),
                      ": the programs for training and evaluation must have the same inputs and outputs.");
    const std::string& problem = programs_[0]->program.modes().no_training;
    TORCH_CHECK_VALUE(problem.empty(), archive_->path(), ": ", problem);
  }

  void list_tensors() {
    std::unordered_set<const c10::TensorImpl*> seen;
    const auto add = [&](NamedTensors& list, const std::string& name) {
      const at::Tensor& tensor = first().tensors.at(name);
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) list.emplace_back(name, tensor);
    };
    for (const std::string& name : first().program.parameters()) add(parameters_, name);
    for (const auto& [name, form] : first().tensors.forms()) {  // parameters that the program does not use
      if (form.is_parameter) add(parameters_, name);
    }
    for (const std::string& name : first().program.buffers()) add(buffers_, name);
  }

  void warn_about_unchecked() const {
    const std::vector<std::string>& unchecked = first().program.checks().unchecked();
    if (unchecked.empty()) return;
    log(LogLevel::warn, c10::str(archive_->path(), ": ", unchecked.size(),
                                 " conditions on the sizes of the inputs are "
                                 "not checked, because they are of an unknown kind, such as ",
                                 unchecked.front(), "."));
  }

  std::shared_ptr<const ExportedArchive> archive_;
  std::vector<std::unique_ptr<LoadedExport>> programs_;  ///< one program, or those for training and evaluation
  NamedTensors parameters_, buffers_;
  c10::Device home_ = c10::kCPU;
  bool training_ = true;
};

std::vector<std::string> programs_to_load(const ExportedArchive& archive, const std::string& wanted) {
  const std::vector<std::string> all = archive.programs();
  const auto has = [&](const std::string& name) { return std::find(all.begin(), all.end(), name) != all.end(); };
  TORCH_CHECK_VALUE(!all.empty(), archive.path(), ": the archive contains no program.");
  if (!wanted.empty()) {
    TORCH_CHECK_VALUE(has(wanted), archive.path(), ": the archive has no program ", wanted, ". Its programs are ",
                      c10::Join(", ", all), ".", did_you_mean(wanted, all));
    return {wanted};
  }
  if (has("train") && has("eval")) return {"train", "eval"};
  if (has("model")) return {"model"};
  TORCH_CHECK_VALUE(all.size() == 1, archive.path(), ": the archive contains the programs ", c10::Join(", ", all),
                    ". Pass the name of one of them.");
  return all;
}

/// The exported model inside wrappers; null if there is none.
std::shared_ptr<ExportedModel> find_exported(const Model& model) {
  std::shared_ptr<Model::Impl> impl = model.implementation();
  while (const auto wrapper = std::dynamic_pointer_cast<ModelWrapper>(impl)) impl = wrapper->wrapped().implementation();
  return std::dynamic_pointer_cast<ExportedModel>(impl);
}

}  // namespace

Model load_exported(const std::string& path, const std::string& program) {
  auto archive = std::make_shared<const ExportedArchive>(path);
  const std::vector<std::string> names = programs_to_load(*archive, program);
  return Model(path, std::make_shared<ExportedModel>(std::move(archive), names));
}

void save_exported(const Model& model, const std::string& path) {
  const std::shared_ptr<ExportedModel> exported = find_exported(model);
  TORCH_CHECK_VALUE(exported, "save_exported: \"", model.name(),
                    "\" is not a program of torch.export. Only models from load_exported() can be saved in this way; "
                    "export_pt2() writes other models.");
  exported->save(path);
}

namespace models {

ModelEntry exported_entry(const std::string& path) {
  const Model model = load_exported(path);
  return exported::entry_of(path, model, find_exported(model)->program());
}

bool is_exported_model(const Model& model) {
  return find_exported(model) != nullptr;
}

bool is_exported_path(const std::string& name) {
  return name.ends_with(".pt2");
}

}  // namespace models

}  // namespace bellows
