#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {

/// The order of a program's instructions while they are put together to units. Each unit has a place in line; what it needs stands
/// before it, what needs it behind. Two may become one, if a place is left between what both need and what needs either.
class Schedule {
 public:
  explicit Schedule(const Program& program);

  const Uses& uses() const { return uses_; }
  /// The instructions that must run before this one.
  const std::vector<int>& needs(int instruction) const { return needs_[instruction]; }
  int unit_of(int instruction) const { return unit_[instruction]; }
  /// Its instructions, in order.
  const std::vector<int>& members(int unit) const { return members_[unit]; }
  bool may_merge(int a, int b) const { return place_for(a, b).second; }
  /// The second one is no more. Returns the first.
  int merge(int a, int b);

  /// The program with each unit of more than one instruction as a group.
  /// Params:  kinds – of each unit; "": its instructions stay single
  Program with_groups(const Program& program, const std::vector<std::string>& kinds) const;

 private:
  std::pair<double, bool> place_for(int a, int b) const;

  Uses uses_;
  std::vector<std::vector<int>> needs_, needed_by_;  ///< instructions, of each instruction
  std::vector<int> unit_;
  std::vector<std::vector<int>> members_;
  std::vector<double> place_;  ///< of each unit
};

/// One instruction in the place of several, which follow each other in some order of the program.
Instruction group_of(const Program& program, const Uses& uses, const std::vector<int>& members, std::string kind);

}  // namespace bellows::graph::detail
