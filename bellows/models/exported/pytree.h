#pragma once

#include <string>
#include <vector>

#include "bellows/models/exported/schema.h"

namespace bellows::models::exported {

/// A leaf of the nested inputs or outputs of a Python module.
struct TreeLeaf {
  std::string name;  ///< such as "x", "pair.0" or "logits"
  std::string path;  ///< of inputs: the Python expression in guards, such as "L['pair'][0]"
};

/// Returns the leaves of the positional and keyword inputs, in order.
/// Params: call – the signature of the module in the program's JSON
std::vector<TreeLeaf> input_leaves(const Json& call);
/// Returns the leaves of the outputs, in order. A single output is called "output". The elements of a tuple are called
/// "output_0", "output_1", ….
std::vector<TreeLeaf> output_leaves(const Json& call);

}  // namespace bellows::models::exported
