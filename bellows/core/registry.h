#pragma once

#include "bellows/core/error.h"

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// An ordered table of named rows: techniques, models, operators. `Row` has a member `std::string name`.
///
/// Components fill it in a function `register_…()` that the owner of the table calls, because linkers drop unused
/// static initializers from static libraries. References to rows stay valid while the registry lives.
/// Threads: fill it from one thread; afterwards, reading is safe from all threads
template <class Row>
class Registry {
 public:
  /// Params: what – the kind of row for error messages: "technique"
  explicit Registry(std::string what) : what_(std::move(what)) {}

  /// Throws: c10::ValueError if the name is already registered
  const Row& add(Row row) {
    TORCH_CHECK_VALUE(!find(row.name), "Registry: ", what_, " \"", row.name,
                      "\" is registered twice. Give one another name.");
    return rows_.emplace_back(std::move(row));
  }

  /// Returns the row, or null.
  const Row* find(std::string_view name) const {
    for (const Row& row : rows_) {
      if (row.name == name) return &row;
    }
    return nullptr;
  }

  /// Throws: c10::ValueError if there is no such row (the message suggests the nearest name and lists all names)
  const Row& at(std::string_view name) const {
    const Row* row = find(name);
    if (!row) {
      std::string all;
      for (const std::string& known : names()) all += (all.empty() ? "" : ", ") + known;
      TORCH_CHECK_VALUE(false, "no ", what_, " is called \"", name, "\".", did_you_mean(name, names()),
                        " Known: ", all);
    }
    return *row;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Row& row : rows_) result.push_back(row.name);
    return result;
  }

  const std::deque<Row>& rows() const { return rows_; }

 private:
  std::string what_;
  std::deque<Row> rows_;
};

}  // namespace bellows
