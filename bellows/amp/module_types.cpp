#include "bellows/amp/module_types_impl.h"

#include <torch/nn/module.h>

namespace bellows::amp {

namespace {

std::string short_name(std::string type) {
  if (const size_t colon = type.rfind("::"); colon != std::string::npos) type = type.substr(colon + 2);
  if (type.ends_with("Impl")) type.resize(type.size() - 4);
  return type;
}

std::shared_ptr<torch::nn::Module> module_or_null(const Model& model) {
  try {
    return model.module();
  } catch (const c10::ValueError&) {
    return nullptr;
  }
}

}  // namespace

std::map<std::string, std::string> module_types(const Model& model) {
  std::map<std::string, std::string> types;
  if (const auto module = module_or_null(model)) {
    for (const auto& item : module->named_modules()) types[item.key()] = short_name(item.value()->name());
  }
  return types;
}

std::string owner_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

}  // namespace bellows::amp
