#pragma once

#include <string_view>

#include "bellows/graph/passes/expression_maker.h"

namespace bellows::graph::detail {

/// Writes the expression of layer norm, batch norm, group norm, instance norm, or of one of their gradients.
/// Returns: false if the operator is none of these
bool write_normalization(Maker& maker, std::string_view name);

}  // namespace bellows::graph::detail
