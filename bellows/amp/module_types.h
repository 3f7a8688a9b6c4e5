#pragma once

#include <map>
#include <string>

#include "bellows/core/model.h"

namespace bellows::amp {

/// Class of each module by path, without namespace and "Impl": "layer1.0.bn1" → "BatchNorm2d". Empty if the kind of
/// model has no information about its modules.
std::map<std::string, std::string> module_types(const Model& model);

/// The module that a parameter belongs to: "fc.weight" → "fc".
std::string owner_of(const std::string& parameter);

}  // namespace bellows::amp
