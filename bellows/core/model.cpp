#include "bellows/core/model.h"

#include <torch/nn/module.h>

#include <map>
#include <sstream>

#include "bellows/core/error.h"

namespace bellows {

namespace {

class NnModel final : public Model::Impl {
 public:
  NnModel(std::shared_ptr<torch::nn::Module> module, Model::Forward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}

  at::Tensor forward(const at::Tensor& input) override { return forward_(input); }
  NamedTensors named_parameters() const override { return listed(module_->named_parameters()); }
  NamedTensors named_buffers() const override { return listed(module_->named_buffers()); }
  void set_training(bool on) override { module_->train(on); }
  bool training() const override { return module_->is_training(); }
  void to(c10::Device device) override { module_->to(device); }
  std::shared_ptr<torch::nn::Module> module() const override { return module_; }
  ModuleTypes module_types() const override {
    ModuleTypes types;
    for (const auto& item : module_->named_modules()) types.emplace_back(item.key(), short_name(item.value()->name()));
    return types;
  }

 private:
  /// "torch::nn::BatchNorm2dImpl" is a BatchNorm2d.
  static std::string short_name(std::string type) {
    if (const size_t colon = type.rfind("::"); colon != std::string::npos) type = type.substr(colon + 2);
    if (type.ends_with("Impl")) type.resize(type.size() - 4);
    return type;
  }
  static NamedTensors listed(const torch::OrderedDict<std::string, at::Tensor>& dict) {
    NamedTensors result;
    for (const auto& item : dict) result.emplace_back(item.key(), item.value());
    return result;
  }

  std::shared_ptr<torch::nn::Module> module_;
  Model::Forward forward_;
};

void append_names(std::ostringstream& out, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  out << "\n  " << title << " (" << names.size() << "):";
  constexpr size_t shown = 8;
  for (size_t i = 0; i < std::min(names.size(), shown); ++i) out << (i ? ", " : " ") << names[i];
  if (names.size() > shown) out << ", …";
}

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

LoadReport compare(const NamedTensors& own, const std::map<std::string_view, const at::Tensor*>& given,
                   const NamedTensors& tensors) {
  LoadReport report;
  std::map<std::string_view, bool> known;
  for (const auto& [name, tensor] : own) {
    known[name] = true;
    const auto found = given.find(name);
    if (found == given.end()) {
      report.missing.push_back(name);
    } else if (found->second->sizes() != tensor.sizes()) {
      report.mismatched.push_back(c10::str(name, ": file ", found->second->sizes(), ", model ", tensor.sizes()));
    }
  }
  const std::vector<std::string> own_names = names_of(own);
  for (const auto& [name, tensor] : tensors) {
    if (!known.count(name)) report.unexpected.push_back(name + did_you_mean(name, own_names));
  }
  return report;
}

}  // namespace

Model::Model(std::string name, std::shared_ptr<Impl> impl) : name_(std::move(name)), impl_(std::move(impl)) {
  TORCH_CHECK_VALUE(impl_, "Model: expected an implementation, got null (model \"", name_, "\").");
}

Model::Model(std::string name, std::shared_ptr<torch::nn::Module> module, Forward forward)
    : Model(std::move(name), std::make_shared<NnModel>(std::move(module), std::move(forward))) {}

std::vector<at::Tensor> Model::parameters() const {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : named_parameters()) result.push_back(tensor);
  return result;
}

NamedTensors Model::state_dict() const {
  NamedTensors result = named_parameters();
  for (auto& item : named_buffers()) result.push_back(std::move(item));
  return result;
}

std::shared_ptr<torch::nn::Module> Model::module() const {
  auto module = impl_->module();
  TORCH_CHECK_VALUE(module, "Model::module: \"", name_, "\" is not a torch::nn module.");
  return module;
}

std::string LoadReport::to_string() const {
  std::ostringstream out;
  append_names(out, "missing", missing);
  append_names(out, "unexpected", unexpected);
  append_names(out, "of another shape", mismatched);
  return out.str().empty() ? "everything matches" : out.str().substr(1);
}

LoadReport load_state_dict(const Model& model, const NamedTensors& tensors, bool strict) {
  const NamedTensors own = model.state_dict();
  std::map<std::string_view, const at::Tensor*> given;
  for (const auto& [name, tensor] : tensors) given[name] = &tensor;
  const LoadReport report = compare(own, given, tensors);
  TORCH_CHECK_VALUE(!strict || report.complete(), "load_state_dict: the weights do not fit model \"", model.name(),
                    "\":\n", report.to_string(),
                    "\nUse another file or model, or load with strict = false to take what fits.");
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found != given.end() && found->second->sizes() == tensor.sizes()) tensor.copy_(*found->second);
  }
  return report;
}

EvalMode::EvalMode(Model model) : model_(std::move(model)) {
  if (const auto module = model_.impl_->module()) {
    for (const auto& part : module->modules()) modes_.push_back(part->is_training());
  } else {
    modes_.push_back(model_.training());
  }
  model_.eval();
}

EvalMode::~EvalMode() {
  const auto module = model_.impl_->module();
  if (!module) {
    model_.train(modes_.front());
    return;
  }
  const auto parts = module->modules();  // each before its children, which its own train() changes, too
  for (size_t i = 0; i < parts.size() && i < modes_.size(); ++i) parts[i]->train(modes_[i]);
}

}  // namespace bellows
