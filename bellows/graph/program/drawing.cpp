#include "bellows/graph/program/drawing.h"

#include <sstream>

#include "bellows/graph/program/drawing_layout.h"

namespace bellows::graph {
namespace {

using Drawn = detail::Drawing;

std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    if (letter == '\n')
      result += "\\l";
    else
      result += letter;
  }
  return result + "\"";
}

std::string as_markup(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '<':
        result += "&lt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

const char* class_of(const Drawn::Node& node) {
  switch (node.kind) {
    case Drawn::Node::Kind::input:
      return "input";
    case Drawn::Node::Kind::constant:
      return "constant";
    case Drawn::Node::Kind::output:
      return "output";
    default:
      return node.lines.size() > 1 ? "group" : "one";
  }
}

constexpr const char* style = R"(
body { font: 13px sans-serif; margin: 0; background: #fff; color: #222 }
h1 { font-size: 15px; margin: 0; padding: 12px 24px; position: sticky; top: 0; left: 0; width: max-content; background: #fffd }
h1 small { font-weight: normal; color: #777; margin-left: 1em }
svg { display: block; user-select: none }
svg text { font: 11px monospace } .title { font-weight: bold }
rect { fill: #eef3fa; stroke: #5b7aa5; rx: 4 }
.group rect { fill: #fdf3e1; stroke: #b98a2e } .input rect, .constant rect { fill: #f2f2f2; stroke: #999 }
.output rect { fill: #e7f5e7; stroke: #5a9a5a }
path { fill: none; stroke: #8a97a8; stroke-width: 1.2; opacity: .55 } path.update { stroke: #c0392b }
.label { fill: #777; font-size: 9px } .on path { opacity: 1; stroke-width: 2.4 } .on .label { fill: #000 }
)";

/// Edges of the node that is pointed at stand out. The page begins with the whole width in sight.
constexpr const char* script = R"(
const edges = [...document.querySelectorAll('[data-from]')];
for (const node of document.querySelectorAll('[data-node]')) {
  const mark = on => edges.forEach(e => {
    if (e.dataset.from === node.dataset.node || e.dataset.to === node.dataset.node) e.classList.toggle('on', on);
  });
  node.addEventListener('mouseenter', () => mark(true));
  node.addEventListener('mouseleave', () => mark(false));
}
const svg = document.querySelector('svg'), {width, height} = svg.viewBox.baseVal;
let scale = 1;
const zoom = (to, x, y) => {
  const before = svg.getBoundingClientRect(), right = (x - before.left) / scale, down = (y - before.top) / scale;
  scale = Math.min(4, Math.max(.05, to));
  svg.setAttribute('width', width * scale);
  svg.setAttribute('height', height * scale);
  const now = svg.getBoundingClientRect();
  scrollBy(now.left + right * scale - x, now.top + down * scale - y);
};
addEventListener('wheel', e => {
  if (!e.ctrlKey) return;
  e.preventDefault();
  zoom(scale * Math.exp(-e.deltaY / 400), e.clientX, e.clientY);
}, {passive: false});
addEventListener('keydown', e => {
  const factor = {'+': 1.25, '-': .8}[e.key];
  if (factor) zoom(scale * factor, innerWidth / 2, innerHeight / 2);
});
addEventListener('pointermove', e => e.buttons & 1 && scrollBy(-e.movementX, -e.movementY));
zoom(Math.max(.25, Math.min(1, document.documentElement.clientWidth / width)), 0, 0);
scrollTo(0, 0);
)";

void draw(std::ostream& out, const Drawn& drawing, const Drawn::Edge& edge) {
  const auto& from = drawing.nodes[edge.from];
  const auto& to = drawing.nodes[edge.to];
  const double x1 = from.x, y1 = from.y + from.height, x2 = edge.x, y2 = to.y, bend = (y2 - y1) / 2;
  out << "<g data-from=\"" << edge.from << "\" data-to=\"" << edge.to << "\"><path"
      << (edge.update ? " class=\"update\"" : "") << " d=\"M" << x1 << " " << y1 << " C" << x1 << " " << y1 + bend
      << " " << x2 << " " << y2 - bend << " " << x2 << " " << y2 << "\"/>";
  const bool said = from.kind != Drawn::Node::Kind::instruction && from.lines[0] == edge.label;
  if (!said) {
    out << "<text class=\"label\" x=\"" << x2 + 3 << "\" y=\"" << y2 - 5 << "\">" << as_markup(edge.label) << "</text>";
  }
  out << "</g>\n";
}

void draw(std::ostream& out, const Drawn::Node& node, size_t number) {
  const double left = node.x - node.width / 2;
  out << "<g class=\"" << class_of(node) << "\" data-node=\"" << number << "\"><title>" << as_markup(node.tip)
      << "</title><rect x=\"" << left << "\" y=\"" << node.y << "\" width=\"" << node.width << "\" height=\""
      << node.height << "\"/><text class=\"title\" x=\"" << left + 8 << "\" y=\"" << node.y + 15 << "\">"
      << as_markup(node.title) << "</text>";
  for (size_t i = 0; i < node.lines.size(); ++i) {
    out << "<text x=\"" << left + 8 << "\" y=\"" << node.y + 15 * static_cast<double>(i + 2) << "\">"
        << as_markup(node.lines[i]) << "</text>";
  }
  out << "</g>\n";
}

}  // namespace

std::string to_dot(const Program& program) {
  const Drawn drawing(program);
  std::ostringstream out;
  out << "digraph program {\n  node [shape=box, fontname=monospace, fontsize=10];\n  edge [fontname=monospace, "
         "fontsize=8];\n";
  for (size_t i = 0; i < drawing.nodes.size(); ++i) {
    const auto& node = drawing.nodes[i];
    std::string label = node.title + "\n";
    for (const std::string& line : node.lines) label += line + "\n";
    const bool group = node.kind == Drawn::Node::Kind::instruction && node.lines.size() > 1;
    if (group) out << "  subgraph cluster_" << i << " {\n    label=" << in_quotes(node.title) << ";\n";
    out << "  n" << i << " [label=" << in_quotes(group ? label.substr(node.title.size() + 1) : label)
        << ", tooltip=" << in_quotes(node.tip) << (node.kind == Drawn::Node::Kind::instruction ? "" : ", style=rounded")
        << "];\n";
    if (group) out << "  }\n";
  }
  for (const auto& edge : drawing.edges) {
    out << "  n" << edge.from << " -> n" << edge.to << " [label=" << in_quotes(edge.label)
        << (edge.update ? ", color=red" : "") << "];\n";
  }
  out << "}\n";
  return out.str();
}

std::string to_html(const Program& program, const std::string& title) {
  Drawn drawing(program);
  drawing.lay_out();
  std::ostringstream out;
  out << "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>" << as_markup(title) << "</title><style>"
      << style << "</style></head><body><h1>" << as_markup(title) << ": " << program.instructions.size()
      << " instructions, " << program.inputs.size() << " inputs, " << program.outputs.size()
      << " outputs<small>+ and -, or Ctrl and the wheel, zoom; drag to move; point at a box for its "
         "values</small></h1>\n"
      << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << drawing.width << "\" height=\"" << drawing.height
      << "\" viewBox=\"0 0 " << drawing.width << " " << drawing.height << "\">\n";
  for (const auto& edge : drawing.edges) draw(out, drawing, edge);
  for (size_t i = 0; i < drawing.nodes.size(); ++i) draw(out, drawing.nodes[i], i);
  out << "</svg>\n<script>" << script << "</script></body></html>\n";
  return out.str();
}

}  // namespace bellows::graph
