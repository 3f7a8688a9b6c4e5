#include "bellows/graph/program/drawing.h"

#include <algorithm>
#include <climits>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "bellows/report/html.h"

namespace bellows::graph {
namespace {

/// The elements of a drawing: inputs, instructions and outputs of a program, and the values between them. Three or more
/// inputs that the same instructions read, such as those of an optimizer's update, form one node. The same applies to
/// outputs of one instruction.
struct Drawing {
  struct Node {
    enum class Kind { input, constant, instruction, output } kind = Kind::instruction;
    std::string title;  ///< "add.Tensor"
    std::vector<std::string>
        /// Of a group: its instructions; of one: arguments that are not tensors; of several inputs or outputs: each of
        /// them
        lines{};
    std::string tip;  ///< the complete text
    int layer = 0;
    double x = 0, width = 0, height = 0;  ///< center of the node
    double y = 0;                         ///< top edge
  };
  struct Edge {
    size_t from = 0, to = 0;
    std::string label;  ///< "f32[8, 4]"; "several", of many inputs or outputs
    bool update = false;
    double x = 0;  ///< position of its end
  };
  std::vector<Node> nodes{};
  std::vector<Edge> edges{};
  double width = 0, height = 0;

  explicit Drawing(const Program& program);
  /// Places the nodes: each layer is below the nodes that it reads. Within a layer, nodes are sorted by their
  /// connections.
  void lay_out();

 private:
  void add_beginnings(const Program& program, Node::Kind kind, const char* name, const std::vector<ValueId>& values);
  void add_instruction(const Program& program, const Instruction& one);
  void add_outputs(const Program& program);
  void add_edge(size_t from, size_t to, const std::string& label, bool update);
  void set_layers();
  void spread_arrivals();
  void move_to_neighbours(const std::vector<Node*>& row);

  std::map<ValueId, size_t> makers_;
};

constexpr double letter_width = 6.7, line_height = 15, padding = 8, gap_x = 24, gap_y = 46;
constexpr size_t longest_line = 44, most_lines = 24;

std::string cut(std::string text) {
  if (text.size() > longest_line) text = text.substr(0, longest_line - 3) + "...";
  return text;
}

std::string short_name(const Instruction& one) {
  if (!one.op) return one.kind.empty() ? "group" : one.kind;
  return one.op->name.starts_with("aten::") ? one.op->name.substr(6) : one.op->name;
}

std::string constants_of(const Instruction& one) {
  std::ostringstream out;
  const char* separator = "";
  for (const auto& argument : one.arguments) {
    if (argument.is_tensors() || (argument.number < 0 && argument.constant.isNone())) continue;
    out << separator;
    if (argument.number >= 0)
      out << "#" << argument.number;
    else if (argument.constant.isDouble())
      out << argument.constant.toDouble();  // in the shortest form
    else
      out << argument.constant;
    separator = ", ";
  }
  return out.str();
}

void keep_first_lines(std::vector<std::string>& lines) {
  if (lines.size() <= most_lines) return;
  const size_t more = lines.size() - most_lines;
  lines.resize(most_lines);
  lines.push_back(c10::str("and ", more, " more"));
}

std::vector<std::string> lines_of(const Instruction& one) {
  std::vector<std::string> lines;
  if (one.group) {
    lines.reserve(one.group->instructions.size());
    for (const Instruction& inner : one.group->instructions) {
      const std::string constants = constants_of(inner);
      lines.push_back(cut(short_name(inner) + (constants.empty() ? "" : "(" + constants + ")")));
    }
    keep_first_lines(lines);
  } else if (const std::string constants = constants_of(one); !constants.empty()) {
    lines.push_back(cut(constants));
  }
  return lines;
}

/// A layer of nodes, which can be moved towards their neighbours in other layers without overlaps.
class Row {
 public:
  explicit Row(std::vector<Drawing::Node*> nodes) : nodes_(std::move(nodes)) {}

  void sort_by(const std::map<const Drawing::Node*, double>& wish) {
    std::stable_sort(nodes_.begin(), nodes_.end(),
                     [&](const auto* a, const auto* b) { return wish.at(a) < wish.at(b); });
    place(wish);
  }

 private:
  /// Places nodes from left to right at the wished position, or further right if the left neighbour is in the way. Then
  /// shifts all nodes back by the average of these moves.
  void place(const std::map<const Drawing::Node*, double>& wish) {
    double free_from = -1e9, pushed = 0;
    for (Drawing::Node* node : nodes_) {
      node->x = std::max(wish.at(node), free_from + node->width / 2);
      pushed += node->x - wish.at(node);
      free_from = node->x + node->width / 2 + gap_x;
    }
    pushed /= static_cast<double>(nodes_.size());
    for (Drawing::Node* node : nodes_) node->x -= pushed;
  }

  std::vector<Drawing::Node*> nodes_;
};

/// Groups related items, such as inputs that the same instructions read. Large groups stay together; small ones are
/// split.
using Bundles = std::vector<std::vector<size_t>>;

template <class Key>
Bundles bundled(const std::vector<Key>& keys) {
  constexpr size_t few = 2;
  std::map<Key, std::vector<size_t>> same;
  for (size_t i = 0; i < keys.size(); ++i) same[keys[i]].push_back(i);
  Bundles result;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::vector<size_t>& all = same[keys[i]];
    if (all.size() <= few)
      result.push_back({i});
    else if (all.front() == i)
      result.push_back(all);
  }
  return result;
}

/// For each value: the instructions that read it.
std::map<ValueId, std::vector<size_t>> readers_of(const Program& program) {
  std::map<ValueId, std::vector<size_t>> result;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (const auto& argument : program.instructions[i].arguments) {
      for (const Operand& operand : argument.operands) result[operand.value].push_back(i);
    }
  }
  return result;
}

Drawing::Drawing(const Program& program) {
  std::vector<ValueId> constants;
  constants.reserve(program.constants.size());
  for (const auto& constant : program.constants) constants.push_back(constant.value);
  add_beginnings(program, Node::Kind::input, "input", program.inputs);
  add_beginnings(program, Node::Kind::constant, "constant", constants);
  for (const Instruction& one : program.instructions) add_instruction(program, one);
  add_outputs(program);
}

void Drawing::add_beginnings(const Program& program, Node::Kind kind, const char* name,
                             const std::vector<ValueId>& values) {
  const auto readers = readers_of(program);
  std::vector<std::vector<size_t>> keys;
  keys.reserve(values.size());
  for (const ValueId value : values)
    keys.push_back(readers.contains(value) ? readers.at(value) : std::vector<size_t>());
  for (const auto& bundle : bundled(keys)) {
    Node node{.kind = kind, .title = c10::str(name, " ", bundle[0])};
    if (bundle.size() > 1) node.title = c10::str(bundle.size(), " ", name, "s");
    for (const size_t i : bundle) {
      const std::string text = program.values[values[i]].geometry.text();
      makers_[values[i]] = nodes.size();
      node.lines.push_back(bundle.size() > 1 ? c10::str(i, ": ", text) : text);
      node.tip += c10::str(node.tip.empty() ? "" : "\n", "%", values[i], " ", text);
    }
    keep_first_lines(node.lines);
    nodes.push_back(std::move(node));
  }
}

void Drawing::add_instruction(const Program& program, const Instruction& one) {
  const size_t at = nodes.size();
  nodes.push_back({.title = short_name(one), .lines = lines_of(one), .tip = detail::instruction_text(program, one)});
  for (const auto& argument : one.arguments) {
    for (const Operand& operand : argument.operands) {
      if (operand.value == no_value) continue;
      const bool update = std::any_of(one.updates.begin(), one.updates.end(),
                                      [&](const auto& written) { return written.before == operand.value; });
      add_edge(makers_.at(operand.value), at, operand.geometry.text(), update);
    }
  }
  for (const auto& update : one.updates) makers_[update.after] = at;
  for (const auto& result : one.results) {
    for (const Operand& operand : result.operands) {
      if (operand.value != no_value) makers_.emplace(operand.value, at);
    }
  }
}

void Drawing::add_outputs(const Program& program) {
  const auto name = [](const Program::Output& output, size_t i) {
    return output.input < 0 ? c10::str("output ", i) : c10::str("to input ", output.input);
  };
  std::vector<size_t> keys;
  keys.reserve(program.outputs.size());
  for (const auto& output : program.outputs) keys.push_back(makers_.at(output.value));
  for (const auto& bundle : bundled(keys)) {
    const size_t at = nodes.size();
    Node node{.kind = Node::Kind::output, .title = name(program.outputs[bundle[0]], bundle[0])};
    if (bundle.size() > 1) node.title = c10::str(bundle.size(), " outputs");
    for (const size_t i : bundle) {
      if (bundle.size() > 1) node.lines.push_back(name(program.outputs[i], i));
      node.tip += c10::str(node.tip.empty() ? "%" : ", %", program.outputs[i].value);
    }
    keep_first_lines(node.lines);
    nodes.push_back(std::move(node));
    for (const size_t i : bundle)
      add_edge(keys[i], at, program.values[program.outputs[i].value].geometry.text(), false);
  }
}

/// Draws one edge for a bundle, however many values it represents.
void Drawing::add_edge(size_t from, size_t to, const std::string& label, bool update) {
  const auto is_bundle = [&](const Node& node) {
    return node.kind != Node::Kind::instruction && node.lines.size() > 1;
  };
  if (is_bundle(nodes[from]) || is_bundle(nodes[to])) {
    const auto known =
        std::find_if(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.from == from && edge.to == to; });
    if (known != edges.end()) {
      known->label = "several";
      known->update = known->update || update;
      return;
    }
  }
  edges.push_back({from, to, label, update});
}

void Drawing::lay_out() {
  for (Node& node : nodes) {
    size_t longest = node.title.size() + 2;
    for (const std::string& line : node.lines) longest = std::max(longest, line.size());
    node.width = letter_width * static_cast<double>(longest) + 2 * padding;
    node.height = line_height * static_cast<double>(1 + node.lines.size()) + padding;
  }
  set_layers();
  std::vector<std::vector<Node*>> rows;
  for (Node& node : nodes) {
    if (rows.size() <= static_cast<size_t>(node.layer)) rows.resize(node.layer + 1);
    rows[node.layer].push_back(&node);
  }
  for (int sweep = 0; sweep < 12; ++sweep) {
    for (size_t i = 0; i < rows.size(); ++i) move_to_neighbours(rows[sweep % 2 ? rows.size() - 1 - i : i]);
  }
  double left = 1e9, right = -1e9;
  height = gap_y / 2;
  for (const auto& row : rows) {
    double tallest = 0;
    for (Node* node : row) {
      node->y = height;
      tallest = std::max(tallest, node->height);
      left = std::min(left, node->x - node->width / 2);
      right = std::max(right, node->x + node->width / 2);
    }
    height += tallest + gap_y;
  }
  for (Node& node : nodes) node.x += gap_x - left;
  width = right - left + 2 * gap_x;
  spread_arrivals();
}

/// Distributes the ends along the top edge of a node, in order.
void Drawing::spread_arrivals() {
  std::map<size_t, std::vector<Edge*>> arriving;
  for (Edge& edge : edges) arriving[edge.to].push_back(&edge);
  for (auto& [to, all] : arriving) {
    std::stable_sort(all.begin(), all.end(),
                     [&](const Edge* a, const Edge* b) { return nodes[a->from].x < nodes[b->from].x; });
    const double step = nodes[to].width / static_cast<double>(all.size() + 1);
    for (size_t i = 0; i < all.size(); ++i)
      all[i]->x = nodes[to].x - nodes[to].width / 2 + step * static_cast<double>(i + 1);
  }
}

/// Assigns layers: each node is below the nodes that it reads. Inputs, and nodes that read nothing else, are placed
/// just above their first reader.
void Drawing::set_layers() {
  std::vector<bool> waits(nodes.size(), false);  // for an instruction
  for (const Edge& edge : edges) {               // in program order
    nodes[edge.to].layer = std::max(nodes[edge.to].layer, nodes[edge.from].layer + 1);
    if (nodes[edge.from].kind == Node::Kind::instruction) waits[edge.to] = true;
  }
  std::vector<std::vector<size_t>> next(nodes.size());
  for (const Edge& edge : edges) next[edge.from].push_back(edge.to);
  for (size_t i = nodes.size(); i-- > 0;) {
    if (waits[i] || next[i].empty()) continue;
    int nearest = INT_MAX;
    for (const size_t reader : next[i]) nearest = std::min(nearest, nodes[reader].layer);
    nodes[i].layer = nearest - 1;
  }
}

void Drawing::move_to_neighbours(const std::vector<Node*>& row) {
  std::map<const Node*, std::pair<double, int>> sums;
  for (const Node* node : row) sums[node] = {0, 0};
  const auto count = [&](const Node& node, double x) {
    if (const auto found = sums.find(&node); found != sums.end()) {
      found->second.first += x;
      ++found->second.second;
    }
  };
  for (const Edge& edge : edges) {
    count(nodes[edge.from], nodes[edge.to].x);
    count(nodes[edge.to], nodes[edge.from].x);
  }
  std::map<const Node*, double> wish;
  for (const auto& [node, sum] : sums) wish[node] = sum.second ? sum.first / sum.second : node->x;
  if (!row.empty()) Row(row).sort_by(wish);
}

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

const char* class_of(const Drawing::Node& node) {
  switch (node.kind) {
    case Drawing::Node::Kind::input:
      return "input";
    case Drawing::Node::Kind::constant:
      return "constant";
    case Drawing::Node::Kind::output:
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

/// Highlights the edges of the node under the pointer. The page initially shows the full width.
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

void draw(std::ostream& out, const Drawing& drawing, const Drawing::Edge& edge) {
  const auto& from = drawing.nodes[edge.from];
  const auto& to = drawing.nodes[edge.to];
  const double x1 = from.x, y1 = from.y + from.height, x2 = edge.x, y2 = to.y, bend = (y2 - y1) / 2;
  out << "<g data-from=\"" << edge.from << "\" data-to=\"" << edge.to << "\"><path"
      << (edge.update ? " class=\"update\"" : "") << " d=\"M" << x1 << " " << y1 << " C" << x1 << " " << y1 + bend
      << " " << x2 << " " << y2 - bend << " " << x2 << " " << y2 << "\"/>";
  const bool said = from.kind != Drawing::Node::Kind::instruction && from.lines[0] == edge.label;
  if (!said) {
    out << "<text class=\"label\" x=\"" << x2 + 3 << "\" y=\"" << y2 - 5 << "\">" << escape_html(edge.label)
        << "</text>";
  }
  out << "</g>\n";
}

void draw(std::ostream& out, const Drawing::Node& node, size_t number) {
  const double left = node.x - node.width / 2;
  out << "<g class=\"" << class_of(node) << "\" data-node=\"" << number << "\"><title>" << escape_html(node.tip)
      << "</title><rect x=\"" << left << "\" y=\"" << node.y << "\" width=\"" << node.width << "\" height=\""
      << node.height << "\"/><text class=\"title\" x=\"" << left + 8 << "\" y=\"" << node.y + 15 << "\">"
      << escape_html(node.title) << "</text>";
  for (size_t i = 0; i < node.lines.size(); ++i) {
    out << "<text x=\"" << left + 8 << "\" y=\"" << node.y + 15 * static_cast<double>(i + 2) << "\">"
        << escape_html(node.lines[i]) << "</text>";
  }
  out << "</g>\n";
}

}  // namespace

std::string to_dot(const Program& program) {
  const Drawing drawing(program);
  std::ostringstream out;
  out << "digraph program {\n  node [shape=box, fontname=monospace, fontsize=10];\n  edge [fontname=monospace, "
         "fontsize=8];\n";
  for (size_t i = 0; i < drawing.nodes.size(); ++i) {
    const auto& node = drawing.nodes[i];
    std::string label = node.title + "\n";
    for (const std::string& line : node.lines) label += line + "\n";
    const bool group = node.kind == Drawing::Node::Kind::instruction && node.lines.size() > 1;
    if (group) out << "  subgraph cluster_" << i << " {\n    label=" << in_quotes(node.title) << ";\n";
    out << "  n" << i << " [label=" << in_quotes(group ? label.substr(node.title.size() + 1) : label)
        << ", tooltip=" << in_quotes(node.tip)
        << (node.kind == Drawing::Node::Kind::instruction ? "" : ", style=rounded") << "];\n";
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
  Drawing drawing(program);
  drawing.lay_out();
  std::ostringstream out;
  out << "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>" << escape_html(title) << "</title><style>"
      << style << "</style></head><body><h1>" << escape_html(title) << ": " << program.instructions.size()
      << " instructions, " << program.inputs.size() << " inputs, " << program.outputs.size()
      << " outputs<small>Zoom with + and -, or with Ctrl and the mouse wheel. Drag to move. Point at a box to see its "
         "values.</small></h1>\n"
      << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << drawing.width << "\" height=\"" << drawing.height
      << "\" viewBox=\"0 0 " << drawing.width << " " << drawing.height << "\">\n";
  for (const auto& edge : drawing.edges) draw(out, drawing, edge);
  for (size_t i = 0; i < drawing.nodes.size(); ++i) draw(out, drawing.nodes[i], i);
  out << "</svg>\n<script>" << script << "</script></body></html>\n";
  return out.str();
}

}  // namespace bellows::graph
