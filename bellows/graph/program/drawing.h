#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// A program as a graph in Graphviz' language: a node an instruction, an edge a value with its shape, groups as clusters.
std::string to_dot(const Program& program);

/// A program as one HTML page that needs nothing else: the same graph laid out in layers from top to bottom, as SVG. Pointing at a
/// node shows the whole line of to_text(); its edges stand out.
/// Cost: about a millisecond for each hundred instructions
std::string to_html(const Program& program, const std::string& title = "program");

}  // namespace bellows::graph
