#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {

/// The order of a program's instructions while they are merged into units. Each unit has a position between the units
/// that it needs and those that need it. Two units can be merged if there is a position between everything that they
/// need and everything that needs them.
class Schedule {
 public:
  explicit Schedule(const Program& program);

  const Uses& uses() const { return uses_; }
  /// Returns: the instructions that must run before this one
  const std::vector<int>& needs(int instruction) const { return needs_[instruction]; }
  int unit_of(int instruction) const { return unit_[instruction]; }
  /// Returns: the unit's instructions, in order
  const std::vector<int>& members(int unit) const { return members_[unit]; }
  bool may_merge(int a, int b) const { return place_for(a, b).second; }
  /// Merges the second unit into the first. Returns the first.
  int merge(int a, int b);

  /// Returns: the program with each unit of several instructions as a group
  /// Params:  kinds – for each unit; "": its instructions stay single
  Program with_groups(const Program& program, const std::vector<std::string>& kinds) const;

 private:
  std::pair<double, bool> place_for(int a, int b) const;

  Uses uses_;
  std::vector<std::vector<int>> needs_, needed_by_;  ///< for each instruction
  std::vector<int> unit_;
  std::vector<std::vector<int>> members_;
  std::vector<double> place_;  ///< for each unit
};

/// Makes one group of several instructions that can be consecutive in a valid order of the program.
Instruction group_of(const Program& program, const Uses& uses, const std::vector<int>& members, std::string kind);

}  // namespace bellows::graph::detail
