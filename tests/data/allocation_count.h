#pragma once

#include <cstdint>

namespace bellows::test {

/// Calls of operator new in this program since it began: of the calling thread, and of all.
int64_t own_allocations();
int64_t all_allocations();

}  // namespace bellows::test
