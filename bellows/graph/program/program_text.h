#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// One instruction as to_text() writes it, with the geometries of all that it reads and makes.
std::string instruction_text(const Program& program, const Instruction& one);

}  // namespace bellows::graph::detail
