#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/export/aten/graph.h"
#include "bellows/export/aten/run.h"

namespace bellows::aten_export {

/// Writes a graph as a `.pt2` file, the archive of torch.export.save (schema 8.17).
/// Params: facts  – of all values of the graph
///         sample – inputs that are stored as an example
///         path   – its name without extension is that of the folder in the archive
/// Throws: c10::Error if the file cannot be written
void write_pt2(const AtenGraph& graph, const std::vector<ValueFacts>& facts, const std::vector<at::Tensor>& sample,
               const std::string& path);

/// Loads a `.pt2` file that write_pt2() wrote.
/// Returns: the function that runs the program in the file with libtorch's operators, without gradients
/// Throws:  c10::ValueError or an exception of the JSON library if the file is damaged or has other content
std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> load_pt2(const std::string& path);

}  // namespace bellows::aten_export
