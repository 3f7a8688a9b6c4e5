#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/compile/codegen/schedule.h"

namespace bellows::compile_detail {

/// Phases with the same code: one function walks through the places of all of them. An optimizer's updates are this.
struct Table {
  static constexpr int64_t block = 4096;  ///< places of a unit

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
  Phase alone{};  ///< what to write where there is no other item
  std::vector<Item> items{};

  int64_t units() const;
  /// Data of the function.
  std::string text() const;
};

/// Puts phases without order among them together where their code is the same.
std::vector<Table> make_tables(const std::vector<Phase>& phases);

}  // namespace bellows::compile_detail
