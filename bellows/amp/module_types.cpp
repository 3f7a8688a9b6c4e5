#include "bellows/amp/module_types.h"

namespace bellows::amp {

std::map<std::string, std::string> module_types(const Model& model) {
  const ModuleTypes types = model.module_types();
  return {types.begin(), types.end()};
}

std::string owner_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

}  // namespace bellows::amp
