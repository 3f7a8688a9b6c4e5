#pragma once

#include <string>

#include "bellows/models/exported/program.h"
#include "bellows/models/registry.h"

namespace bellows::models::exported {

/// Creates the entry of a program. Its inputs determine the kind of data.
ModelEntry entry_of(const std::string& path, const Model& model, const ExportedProgram& program);

}  // namespace bellows::models::exported
