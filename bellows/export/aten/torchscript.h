#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/export/aten/graph.h"

namespace bellows::aten_export {

/// Writes a graph as a TorchScript file. Weights become parameters and buffers of nested modules, as their names say.
/// Throws: c10::ValueError if a name of a weight is used for a module, too. c10::Error if the file cannot be written
void write_torchscript(const AtenGraph& graph, const std::string& path);

/// Loads a TorchScript file.
/// Returns: the function that runs it, whose inputs are those of the graph
std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> load_torchscript(const std::string& path);

}  // namespace bellows::aten_export
