#pragma once

#include <string>

#include "bellows/graph/program/program.h"

namespace bellows::graph {

/// Draws a program as a graph in Graphviz's DOT language. Each instruction is a node. Each value is an edge with the
/// shape of the value. Groups are clusters.
std::string to_dot(const Program& program);

/// Draws a program as a self-contained HTML page with an SVG image of the same graph, in layers from top to bottom.
/// When the mouse pointer is on a node, the page shows the node's line of to_text() and highlights its edges.
/// Cost: about one millisecond per hundred instructions
std::string to_html(const Program& program, const std::string& title = "program");

}  // namespace bellows::graph
