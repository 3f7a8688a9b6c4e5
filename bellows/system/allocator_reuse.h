#pragma once

namespace bellows {

/// From now on the process keeps the memory that it frees, and gives it out again: the C library otherwise returns large
/// blocks to the system, and the next tensor of that size pays for zeroed pages anew (about 0.25 µs for each 4 KiB). For
/// programs that allocate alike in every step, as training does. It cannot be undone.
/// Numerics: nothing changes
/// Cost:     the process stays as large as it ever was; with glibc only, elsewhere nothing happens
/// Threads:  any; call it before work starts, so that early blocks are kept too
/// Ref:      mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
void keep_freed_memory();

}  // namespace bellows
