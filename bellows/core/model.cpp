#include "bellows/core/model.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "bellows/core/error.h"

namespace bellows {

namespace {

/// A torch::nn module, except for its forward.
class NnModule : public Model::Impl {
 public:
  explicit NnModule(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  NamedTensors named_parameters() const override { return listed(module_->named_parameters()); }
  NamedTensors named_buffers() const override { return listed(module_->named_buffers()); }
  void set_training(bool on) override { module_->train(on); }
  bool training() const override { return module_->is_training(); }
  void to(c10::Device device) override { module_->to(device); }
  using Model::Impl::to;
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
};

class NnModel final : public NnModule {
 public:
  NnModel(std::shared_ptr<torch::nn::Module> module, Model::Forward forward)
      : NnModule(std::move(module)), forward_(std::move(forward)) {}
  at::Tensor forward(const at::Tensor& input) override { return forward_(input); }

 private:
  Model::Forward forward_;
};

/// A module with several inputs or outputs.
class NnModelWithNames final : public NnModule {
 public:
  NnModelWithNames(std::shared_ptr<torch::nn::Module> module, std::vector<ModelInput> inputs,
                   std::vector<std::string> outputs, Model::ForwardAll forward)
      : NnModule(std::move(module)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        forward_(std::move(forward)) {}

  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    TORCH_CHECK_VALUE(inputs.size() <= inputs_.size(), "Model: expected at most ", inputs_.size(), " inputs, got ",
                      inputs.size(), ".");
    std::vector<at::Tensor> all = inputs;
    all.resize(inputs_.size());  // optional ones may be left out at the end
    std::vector<at::Tensor> results = forward_(all);
    TORCH_CHECK_VALUE(results.size() == outputs_.size(), "Model: expected forward to return ", outputs_.size(),
                      " tensors (", c10::Join(", ", outputs_), "), got ", results.size(), ".");
    return results;
  }
  std::vector<ModelInput> inputs() const override { return inputs_; }
  std::vector<std::string> outputs() const override { return outputs_; }

 private:
  std::vector<ModelInput> inputs_;
  std::vector<std::string> outputs_;
  Model::ForwardAll forward_;
};

void check_names(const std::string& model, const char* what, std::vector<std::string> names) {
  TORCH_CHECK_VALUE(!names.empty(), "Model \"", model, "\": expected at least one ", what, ", got none.");
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  TORCH_CHECK_VALUE(twice == names.end(), "Model \"", model, "\": two ", what, "s are called \"",
                    twice == names.end() ? "" : *twice, "\".");
  TORCH_CHECK_VALUE(!names.front().empty(), "Model \"", model, "\": the name of an ", what, " is empty.");
}

std::vector<std::string> names_of(const std::vector<ModelInput>& inputs) {
  std::vector<std::string> names;
  names.reserve(inputs.size());
  for (const ModelInput& input : inputs) names.push_back(input.name);
  return names;
}

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

Model::Model(std::string name, std::shared_ptr<torch::nn::Module> module, std::vector<ModelInput> inputs,
             std::vector<std::string> outputs, ForwardAll forward)
    : name_(std::move(name)) {
  check_names(name_, "input", names_of(inputs));
  check_names(name_, "output", outputs);
  impl_ =
      std::make_shared<NnModelWithNames>(std::move(module), std::move(inputs), std::move(outputs), std::move(forward));
}

at::Tensor Model::Impl::forward(const at::Tensor& input) {
  const std::vector<ModelInput> names = inputs();
  const auto needed = std::count_if(names.begin(), names.end(), [](const ModelInput& one) { return !one.optional; });
  TORCH_CHECK_VALUE(needed <= 1, "Model: expected the inputs ", c10::Join(", ", names_of(names)),
                    ", got one tensor. Call forward({{\"", names.front().name, "\", …}, …}).");
  std::vector<at::Tensor> all(names.size());
  all.front() = input;
  return forward_all(all).front();
}

std::vector<at::Tensor> Model::Impl::forward_all(const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(inputs.size() == 1, "Model: expected one input, got ", inputs.size(), ".");
  return {forward(inputs.front())};
}

void Model::Impl::to(c10::ScalarType dtype) {
  NamedTensors changing;
  for (const NamedTensors& tensors : {named_parameters(), named_buffers()}) {
    for (const auto& item : tensors) {
      if (item.second.is_floating_point() && item.second.scalar_type() != dtype) changing.push_back(item);
    }
  }
  cast_in_place(changing, dtype);
}

void cast_in_place(const NamedTensors& tensors, c10::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  for (auto [name, tensor] : tensors) {
    tensor.mutable_grad().reset();
    if (tensor.scalar_type() != dtype) tensor.set_data(tensor.detach().to(dtype));
  }
}

NamedTensors Model::forward(const NamedTensors& inputs) const {
  const std::vector<ModelInput> expected = impl_->inputs();
  const std::vector<std::string> names = names_of(expected);
  std::vector<at::Tensor> ordered(expected.size());
  for (const auto& [name, tensor] : inputs) {
    const auto found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK_VALUE(found != names.end(), "Model \"", name_, "\": expected the inputs ", c10::Join(", ", names),
                      ", got \"", name, "\".", did_you_mean(name, names));
    at::Tensor& slot = ordered[static_cast<size_t>(found - names.begin())];
    TORCH_CHECK_VALUE(!slot.defined(), "Model \"", name_, "\": input \"", name, "\" is given twice.");
    slot = tensor;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK_VALUE(ordered[i].defined() || expected[i].optional, "Model \"", name_, "\": input \"", names[i],
                      "\" is missing; expected ", c10::Join(", ", names), ".");
  }
  const std::vector<at::Tensor> results = impl_->forward_all(ordered);
  const std::vector<std::string> output_names = impl_->outputs();
  NamedTensors outputs;
  outputs.reserve(results.size());
  for (size_t i = 0; i < results.size(); ++i) outputs.emplace_back(output_names.at(i), results[i]);
  return outputs;
}

std::vector<at::Tensor> Model::buffers() const {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : named_buffers()) result.push_back(tensor);
  return result;
}

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
  append_names(out, "with another shape", mismatched);
  return out.str().empty() ? "everything matches" : out.str().substr(1);
}

LoadReport load_state_dict(const Model& model, const NamedTensors& tensors, bool strict) {
  const NamedTensors own = model.state_dict();
  std::map<std::string_view, const at::Tensor*> given;
  for (const auto& [name, tensor] : tensors) given[name] = &tensor;
  const LoadReport report = compare(own, given, tensors);
  TORCH_CHECK_VALUE(!strict || report.complete(), "load_state_dict: the weights do not fit model \"", model.name(),
                    "\":\n", report.to_string(),
                    "\nUse another file or model, or set strict = false to load only the tensors that fit.");
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
  const auto parts = module->modules();  // parents come first, because train() of a parent also changes its children
  for (size_t i = 0; i < parts.size() && i < modes_.size(); ++i) parts[i]->train(modes_[i]);
}

}  // namespace bellows
