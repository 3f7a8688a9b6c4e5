#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {

/// The order of a program's instructions while they are merged into units. Each unit has a position after all units
/// that it needs and before all units that need it. Two units can be merged if the merged unit has such a position.
class Schedule {
 public:
  explicit Schedule(const Program& program);

  const Uses& uses() const { return uses_; }
  /// Returns the instructions that must run before this instruction.
  const std::vector<int>& needs(int instruction) const { return needs_[instruction]; }
  int unit_of(int instruction) const { return unit_[instruction]; }
  /// Returns the unit's instructions, in order.
  const std::vector<int>& members(int unit) const { return members_[unit]; }
  bool may_merge(int a, int b) const { return place_for(a, b).second; }
  /// Merges unit `b` into unit `a` and returns `a`.
  int merge(int a, int b);

  /// Returns the program with a group for each unit that has several instructions.
  /// Params:  kinds – for each unit, the kind of the group. If empty, the instructions of this unit are not grouped
  Program with_groups(const Program& program, const std::vector<std::string>& kinds) const;

 private:
  std::pair<double, bool> place_for(int a, int b) const;

  Uses uses_;
  std::vector<std::vector<int>> needs_, needed_by_;  ///< for each instruction
  std::vector<int> unit_;
  std::vector<std::vector<int>> members_;
  std::vector<double> place_;  ///< for each unit
};

/// Combines several instructions into one group. They must be consecutive in some valid order of the program.
Instruction group_of(const Program& program, const Uses& uses, const std::vector<int>& members, std::string kind);

}  // namespace bellows::graph::detail
