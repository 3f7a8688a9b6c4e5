#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/export/aten/graph.h"
#include "bellows/export/aten/run.h"

namespace bellows::aten_export {

using Json = nlohmann::ordered_json;

/// The JSON of a `.pt2` file.
struct Pt2Program {
  Json program{};
  std::vector<std::string> constant_names{};  ///< of AtenGraph::constants
};

/// Params: facts – of all values of the graph
Pt2Program pt2_program(const AtenGraph& graph, const std::vector<ValueFacts>& facts);

/// Returns the number that the schema gives to a dtype.
/// Throws: c10::ValueError if it has none
int pt2_number(c10::ScalarType dtype);
/// Returns the number that the schema gives to a memory format.
int pt2_number(c10::MemoryFormat format);

/// The properties of a tensor with fixed sizes.
Json pt2_tensor_meta(const at::Tensor& tensor, bool requires_grad);

}  // namespace bellows::aten_export
