#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// A program without the data of its constants.
/// Throws: c10::ValueError – something that JSON cannot tell
std::string program_to_json(const Program& program);

/// Throws: c10::ValueError – anything but what program_to_json() makes
Program program_from_json(const std::string& text);

}  // namespace bellows::graph::detail
