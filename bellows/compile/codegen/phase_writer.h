#pragma once

#include <cstdint>
#include <string>

#include "bellows/compile/codegen/schedule.h"
#include "bellows/compile/codegen/table.h"

namespace bellows::compile_detail {

/// The phase as a function's body, and in how many units it may be cut. Chooses rows or columns by what lies side by side in memory.
struct WrittenPhase {
  std::string body{};
  int64_t units = 0;
  int64_t unit_bytes = 0;  ///< about as much time as moving these takes
};
WrittenPhase write_phase(const Phase& phase);
/// The phase of a table; one that has a single item is written as it came.
WrittenPhase write_table(const Table& table);

}  // namespace bellows::compile_detail
