#pragma once

namespace bellows {

/// Makes the C library keep freed memory in the process and reuse it. By default, it returns large blocks to the
/// operating system, and the next tensor of that size has to fault in zeroed pages again (about 0.25 µs for each 4
/// KiB). Use it in programs whose steps all allocate the same sizes, such as training. It cannot be undone.
/// Numerics: no effect
/// Cost:     the process never shrinks below its peak memory. Without glibc, the function does nothing
/// Threads:  any; call it before work starts, so that early blocks are reused, too
void keep_freed_memory();

}  // namespace bellows
