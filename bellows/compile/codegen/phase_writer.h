#pragma once

#include <cstdint>
#include <string>

#include "bellows/compile/codegen/schedule.h"
#include "bellows/compile/codegen/table.h"

namespace bellows::compile_detail {

/// A phase as the body of a function, and the number of units into which its work can be divided. Rows or columns are
/// chosen by which elements are adjacent in memory.
struct WrittenPhase {
  std::string body{};
  int64_t units = 0;
  int64_t unit_bytes = 0;  ///< cost of a unit: the bytes that could be moved in the same time
};
WrittenPhase write_phase(const Phase& phase);
/// Writes the phase of a table. With a single item, the original phase is written.
WrittenPhase write_table(const Table& table);

}  // namespace bellows::compile_detail
