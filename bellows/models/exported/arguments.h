#pragma once

#include <string>
#include <unordered_map>

#include "bellows/models/exported/plan.h"

namespace bellows::models::exported {

/// The values of a graph that are computed so far, by name.
class ValueNames {
 public:
  /// Throws: c10::ValueError if a value of this name exists already
  int define(const std::string& name);
  /// Throws: c10::ValueError if there is no such value yet
  int use(const std::string& name) const;
  size_t size() const { return slots_.size(); }

 private:
  std::unordered_map<std::string, int> slots_;
};

/// Translates an argument of the JSON.
/// Params: type – of the operator's parameter; null if there is none
Argument argument_of(const Json& alternative, const c10::TypePtr& type, const ValueNames& values);

}  // namespace bellows::models::exported
