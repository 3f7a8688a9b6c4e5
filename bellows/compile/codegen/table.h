#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/compile/codegen/schedule.h"

namespace bellows::compile_detail {

/// Several phases with the same code. One function computes the elements of all these phases. The updates of an
/// optimizer use tables.
struct Table {
  static constexpr int64_t block = 4096;  ///< elements per unit of work

  struct Item {
    struct Address {
      bool result = false;
      int index = 0;
      int64_t offset_bytes = 0;
    };
    int64_t places = 0;
    std::vector<Address> addresses{};  ///< of loads, followed by stores, in order
    std::vector<int> numbers{};
  };
  Phase phase{};  ///< of the first item, with accesses and numbers counted from 0
  Phase alone{};  ///< the original phase, used if the table has a single item
  std::vector<Item> items{};

  int64_t units() const;
  /// Returns the table as C++ data for the function.
  std::string text() const;
};

/// Combines independent flat phases that have the same code. A flat phase has at most one loop, no reductions and no
/// scratch memory. Every other phase gets a separate table.
std::vector<Table> make_tables(const std::vector<Phase>& phases);

}  // namespace bellows::compile_detail
