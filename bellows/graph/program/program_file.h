#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Writes a program, with its constants, to a file that appears under its name only when it is whole: a safetensors file whose
/// metadata is the program as JSON, with a checksum. Kernels are not kept: what they stand for is, the operator or the group.
/// Throws: c10::ValueError – a kernel that stands for neither, or a constant that is no number, text, device, or list of these;
///         c10::Error – cannot be written
void save_program(const std::string& path, const Program& program);

/// Reads what save_program() wrote.
/// Throws: c10::ValueError – missing, damaged, of another kind or version; written with another libtorch, whose dispatch keys are other
///         ones; an operator that is not registered here; a program that Program::check() refuses
Program load_program(const std::string& path);

}  // namespace bellows::graph
