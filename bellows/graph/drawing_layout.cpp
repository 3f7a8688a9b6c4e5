#include <algorithm>
#include <climits>
#include <map>
#include <sstream>

#include "bellows/graph/drawing_layout_impl.h"
#include "bellows/graph/program_text_impl.h"

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

std::vector<std::string> lines_of(const Instruction& one) {
  std::vector<std::string> lines;
  if (one.group) {
    for (const Instruction& inner : one.group->instructions) {
      if (lines.size() == most_lines) {
        lines.push_back(c10::str("and ", one.group->instructions.size() - most_lines, " more"));
        break;
      }
      const std::string constants = constants_of(inner);
      lines.push_back(cut(short_name(inner) + (constants.empty() ? "" : "(" + constants + ")")));
    }
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

}  // namespace

Drawing::Drawing(const Program& program) {
  std::map<ValueId, size_t> makers;
  const auto begin = [&](Node::Kind kind, const char* name, ValueId value, size_t number) {
    makers[value] = nodes.size();
    nodes.push_back({.kind = kind,
                     .title = c10::str(name, " ", number),
                     .lines = {program.values[value].geometry.text()},
                     .tip = c10::str("%", value, " ", program.values[value].geometry.text())});
  };
  for (size_t i = 0; i < program.inputs.size(); ++i) begin(Node::Kind::input, "input", program.inputs[i], i);
  for (size_t i = 0; i < program.constants.size(); ++i)
    begin(Node::Kind::constant, "constant", program.constants[i].value, i);
  for (const Instruction& one : program.instructions) {
    const size_t at = nodes.size();
    nodes.push_back({.title = short_name(one), .lines = lines_of(one), .tip = instruction_text(program, one)});
    for (const auto& argument : one.arguments) {
      for (const Operand& operand : argument.operands) {
        if (operand.value == no_value) continue;
        const bool update = std::any_of(one.updates.begin(), one.updates.end(),
                                        [&](const auto& written) { return written.before == operand.value; });
        edges.push_back({makers.at(operand.value), at, operand.geometry.text(), update});
      }
    }
    for (const auto& update : one.updates) makers[update.after] = at;
    for (const auto& result : one.results) {
      for (const Operand& operand : result.operands) {
        if (operand.value != no_value) makers.emplace(operand.value, at);
      }
    }
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const Program::Output& output = program.outputs[i];
    edges.push_back({makers.at(output.value), nodes.size(), program.values[output.value].geometry.text()});
    nodes.push_back({.kind = Node::Kind::output,
                     .title = output.input < 0 ? c10::str("output ", i) : c10::str("to input ", output.input),
                     .tip = c10::str("%", output.value)});
  }
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

/// Below all that is read; what a program begins with comes just above where it is needed first.
void Drawing::set_layers() {
  for (const Edge& edge : edges)  // in the order of the program
    nodes[edge.to].layer = std::max(nodes[edge.to].layer, nodes[edge.from].layer + 1);
  std::vector<int> nearest(nodes.size(), INT_MAX);
  for (const Edge& edge : edges) nearest[edge.from] = std::min(nearest[edge.from], nodes[edge.to].layer);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool begins = nodes[i].kind == Node::Kind::input || nodes[i].kind == Node::Kind::constant;
    if (begins && nearest[i] != INT_MAX) nodes[i].layer = nearest[i] - 1;
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
