#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Saves a program with its constants as a safetensors file. The metadata contains the program as JSON with a checksum.
/// The file appears under its name only when it is complete. Kernels are not saved; the operators or groups that they
/// replace are.
/// Throws: c10::ValueError if a kernel replaces neither an operator nor a group, or if a constant is not a number,
///         string, device, or list of these; c10::Error if the file cannot be written
void save_program(const std::string& path, const Program& program);

/// Loads a program that save_program() wrote.
/// Throws: c10::ValueError if the file is missing, damaged, or of another kind or version; if another version of
///         libtorch wrote it, because its dispatch keys differ; if an operator is not registered in this process; if
///         Program::check() rejects the program
Program load_program(const std::string& path);

}  // namespace bellows::graph
