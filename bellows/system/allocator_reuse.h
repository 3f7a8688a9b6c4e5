#pragma once

namespace bellows {

/// Makes the C library keep freed memory in the process and reuse it. By default, the C library returns large blocks to
/// the operating system. The next tensor of the same size then causes page faults (about 0.25 µs for each 4 KiB). Call
/// this function in programs whose steps all allocate the same sizes, such as training. The effect lasts until the
/// process ends. Without glibc, the function has no effect.
/// Numerics: no effect
/// Cost:     after a peak, the memory of the process does not shrink
/// Threads:  may be called from any thread. Call it at the start of the program, so that the first allocations are
///           reused, too
void keep_freed_memory();

/// Makes the C library return freed blocks of 1 MiB or more to the operating system at once. By default, it keeps
/// blocks of up to 32 MiB after the first of them was freed, and the memory of the process can then be several times
/// as large as its tensors. The effect lasts until the process ends. Without glibc, the function has no effect.
/// Numerics: no effect
/// Cost:     page faults whenever a large block is allocated
/// Threads:  like keep_freed_memory()
void return_freed_memory();

}  // namespace bellows
