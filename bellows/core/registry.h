#pragma once

#include "bellows/core/error.h"

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// An ordered table of named rows, such as techniques, models or operators. `Row` must have a member
/// `std::string name`.
///
/// Each component adds its rows in a function `register_…()`, which the owner of the table calls. Static initializers
/// are not used, because linkers drop unused initializers from static libraries. References to rows stay valid while
/// the registry exists.
/// Threads: add rows from one thread; afterwards, all threads may read
template <class Row>
class Registry {
 public:
  /// Params: what – kind of row for error messages, such as "technique"
  explicit Registry(std::string what) : what_(std::move(what)) {}

  /// Throws: c10::ValueError if the name is already registered
  const Row& add(Row row) {
    TORCH_CHECK_VALUE(!find(row.name), "Registry: ", what_, " \"", row.name,
                      "\" is registered twice. Give one another name.");
    return rows_.emplace_back(std::move(row));
  }

  /// Returns the row, or null if there is no row with this name.
  const Row* find(std::string_view name) const {
    for (const Row& row : rows_) {
      if (row.name == name) return &row;
    }
    return nullptr;
  }

  /// Returns the row.
  /// Throws: c10::ValueError if there is no row with this name (the message suggests the nearest name and lists all
  ///         names)
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
