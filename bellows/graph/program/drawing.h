#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Draws a program as a graph in Graphviz' DOT language: one node per instruction, one edge per value with its shape,
/// and groups as clusters.
std::string to_dot(const Program& program);

/// Draws a program as a self-contained HTML page: the same graph as SVG, in layers from top to bottom. Pointing at a
/// node shows its complete line of to_text() and highlights its edges.
/// Cost: about one millisecond per hundred instructions
std::string to_html(const Program& program, const std::string& title = "program");

}  // namespace bellows::graph
