#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bellows/graph/program/program.h"

namespace bellows::graph::detail {

/// What is drawn of a program: its inputs, instructions and outputs, and the values that go from one to another. Three or more inputs that
/// the same instructions read, as those of an optimizer's update, are one node, and so are outputs of one instruction.
struct Drawing {
  struct Node {
    enum class Kind { input, constant, instruction, output } kind = Kind::instruction;
    std::string title;  ///< "add.Tensor"
    std::vector<std::string>
        lines{};  ///< of a group: its instructions; of one: arguments that are no tensors; of many inputs or outputs: each
    std::string tip;  ///< all of it
    int layer = 0;
    double x = 0, width = 0, height = 0;  ///< of its middle
    double y = 0;                         ///< of its top
  };
  struct Edge {
    size_t from = 0, to = 0;
    std::string label;  ///< "f32[8, 4]"; "several", of many inputs or outputs
    bool update = false;
    double x = 0;  ///< where it arrives
  };
  std::vector<Node> nodes{};
  std::vector<Edge> edges{};
  double width = 0, height = 0;

  explicit Drawing(const Program& program);
  /// Gives nodes their places: a layer below all that they read, beside each other by what they are connected to.
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

}  // namespace bellows::graph::detail
