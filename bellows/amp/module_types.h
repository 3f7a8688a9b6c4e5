#pragma once

#include <map>
#include <string>

#include "bellows/core/model.h"

namespace bellows::amp {

/// Returns a map from each module's path to its class name, without the namespace and the suffix "Impl". For example,
/// "layer1.0.bn1" maps to "BatchNorm2d". The map is empty if the model has no information about its modules.
std::map<std::string, std::string> module_types(const Model& model);

/// Returns the path of the module to which a parameter belongs. For example, "fc.weight" gives "fc".
std::string owner_of(const std::string& parameter);

}  // namespace bellows::amp
