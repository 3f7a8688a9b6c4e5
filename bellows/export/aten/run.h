#pragma once

#include <functional>
#include <vector>

#include "bellows/export/aten/graph.h"

namespace bellows::aten_export {

/// Receives each tensor that a run defines, including inputs and weights.
using Visitor = std::function<void(Value, const at::Tensor&)>;

/// Runs a graph with libtorch's operators, one after the other and without gradients.
/// Params: inputs – in the order of AtenGraph::inputs
std::vector<at::Tensor> run_graph(const AtenGraph& graph, const std::vector<at::Tensor>& inputs,
                                  const Visitor& visit = {});

/// The properties of a value in several runs.
struct ValueFacts {
  c10::ScalarType dtype = c10::ScalarType::Undefined;  ///< Undefined: no run defined the value
  export_detail::VariedSizes sizes{}, strides{};
};

/// Runs a graph for each list of inputs, and collects the properties of all values.
/// Returns: for each value, its properties. Values that the graph does not define have no sizes
std::vector<ValueFacts> trace_graph(const AtenGraph& graph, const std::vector<std::vector<at::Tensor>>& inputs);

}  // namespace bellows::aten_export
