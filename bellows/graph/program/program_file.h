#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Saves a program with its constants as a safetensors file. The metadata contains the program as JSON with a checksum.
/// The file receives its name only when it is complete. Kernels are not saved. The operators or groups that they
/// replace are saved instead.
/// Throws: c10::ValueError if a kernel replaces neither an operator nor a group, or if a constant is not a number,
///         string, device, or list of these. c10::Error if the file cannot be written
void save_program(const std::string& path, const Program& program);

/// Loads a program that save_program() wrote.
/// Throws: c10::ValueError if
///         - the file is missing or damaged, or has a different format or version,
///         - a different version of libtorch wrote the file, because dispatch keys differ between versions,
///         - an operator is not registered in this process, or
///         - Program::check() rejects the program
Program load_program(const std::string& path);

/// Returns a program as JSON, without the data of its constants.
/// Throws: c10::ValueError under the conditions of save_program()
std::string program_to_json(const Program& program);
/// Reads the JSON of program_to_json(). The data of constants is missing, and the program is not checked.
/// Throws: c10::ValueError if the text is not such JSON, or if an operator is not registered in this process
Program program_from_json(const std::string& text);

/// Returns the dtype whose name c10::toString() returns.
/// Throws: c10::ValueError if there is none
c10::ScalarType dtype_named(const std::string& name);

}  // namespace bellows::graph
