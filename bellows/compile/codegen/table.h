#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/compile/codegen/schedule.h"

namespace bellows::compile_detail {

/// Several phases with the same code, computed by one function that goes through the places of all of them. Used for
/// the updates of an optimizer.
struct Table {
  static constexpr int64_t block = 4096;  ///< places per unit

  struct Item {
    struct Address {
      bool result = false;
      int index = 0;
      int64_t offset_bytes = 0;
    };
    int64_t places = 0;
    std::vector<Address> addresses{};  ///< of loads, then of stores, in order
    std::vector<int> numbers{};
  };
  Phase phase{};  ///< of the first item, with accesses and numbers counted from 0
  Phase alone{};  ///< the original phase, for a table with a single item
  std::vector<Item> items{};

  int64_t units() const;
  /// The table as data of the function.
  std::string text() const;
};

/// Combines independent phases with the same code.
std::vector<Table> make_tables(const std::vector<Phase>& phases);

}  // namespace bellows::compile_detail
