#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/compile/codegen/schedule.h"

namespace bellows::compile_detail {

/// Several phases with the same code. One function computes the elements of all these phases. For example, the updates
/// of many parameters in an optimizer step become one table.
struct Table {
  static constexpr int64_t block = 4096;  ///< elements per unit of work

  struct Item {
    struct Address {
      bool result = false;
      int index = 0;
      int64_t offset_bytes = 0;
    };
    int64_t places = 0;
    std::vector<Address> addresses{};  ///< addresses of all loads, followed by those of all stores
    std::vector<int> numbers{};
  };
  Phase phase{};  ///< phase of the first item; its accesses and numbers are renumbered from 0
  Phase alone{};  ///< the original phase, used if the table has a single item
  std::vector<Item> items{};

  int64_t units() const;
  /// Returns the items as a C++ array, which the generated function reads.
  std::string text() const;
};

/// Combines independent flat phases that have the same code. A flat phase has at most one loop, no reductions and no
/// scratch memory. Every other phase gets a separate table.
std::vector<Table> make_tables(const std::vector<Phase>& phases);

}  // namespace bellows::compile_detail
