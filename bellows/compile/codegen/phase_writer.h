#pragma once

#include <cstdint>
#include <string>

#include "bellows/compile/codegen/schedule.h"
#include "bellows/compile/codegen/table.h"

namespace bellows::compile_detail {

/// A phase (schedule.h) as the body of a C++ function, with the number of units into which the work can be divided. The
/// body iterates over rows or columns, depending on which elements are adjacent in memory.
struct WrittenPhase {
  std::string body{};
  int64_t units = 0;
  int64_t unit_bytes = 0;  ///< estimated cost of a unit, expressed as the bytes that memory could transfer in that time
};
WrittenPhase write_phase(const Phase& phase);
/// Writes the phase of a table (table.h). If the table has a single item, the original phase is written.
WrittenPhase write_table(const Table& table);

}  // namespace bellows::compile_detail
