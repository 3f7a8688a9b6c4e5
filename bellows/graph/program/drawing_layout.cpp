#include <algorithm>
#include <climits>
#include <map>
#include <sstream>

#include "bellows/graph/program/drawing_layout.h"
#include "bellows/graph/program/program_text.h"

namespace bellows::graph::detail {
namespace {

constexpr double letter = 6.7, line_height = 15, padding = 8, gap_x = 24, gap_y = 46;
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
      out << argument.constant.toDouble();  // as short as people write it
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

/// Lowers or lifts a whole layer to where its neighbours are, without overlaps.
class Row {
 public:
  explicit Row(std::vector<Drawing::Node*> nodes) : nodes_(std::move(nodes)) {}

  void sort_by(const std::map<const Drawing::Node*, double>& wish) {
    std::stable_sort(nodes_.begin(), nodes_.end(),
                     [&](const auto* a, const auto* b) { return wish.at(a) < wish.at(b); });
    place(wish);
  }

 private:
  /// From left to right as wished, or as far right as the left neighbour pushes; then half of the push back.
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

/// Numbers of those that go with each other, as inputs that the same instructions read: many together, few each for itself.
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

/// Of each value: the instructions that read it.
std::map<ValueId, std::vector<size_t>> readers_of(const Program& program) {
  std::map<ValueId, std::vector<size_t>> result;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    for (const auto& argument : program.instructions[i].arguments) {
      for (const Operand& operand : argument.operands) result[operand.value].push_back(i);
    }
  }
  return result;
}

}  // namespace

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
  nodes.push_back({.title = short_name(one), .lines = lines_of(one), .tip = instruction_text(program, one)});
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

/// From and to a bundle goes one, however many values it stands for.
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
    node.width = letter * static_cast<double>(longest) + 2 * padding;
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

/// Along the top of a node, in the order in which they come.
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

/// Below all that is read; what a program begins with, and what reads nothing else, comes just above where it is needed first.
void Drawing::set_layers() {
  std::vector<bool> waits(nodes.size(), false);  // for an instruction
  for (const Edge& edge : edges) {               // in the order of the program
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

}  // namespace bellows::graph::detail
