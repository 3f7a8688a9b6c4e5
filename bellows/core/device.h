#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace bellows {

/// Parses a device such as "cpu", "cuda" or "cuda:1", and checks that it exists.
/// Throws: c10::ValueError if `text` is not a device, or if the device does not exist (the message lists the devices of
///         this machine)
c10::Device parse_device(std::string_view text);

/// Waits until all work that is queued on `device` is complete. For the CPU, the function returns immediately.
/// Ref: torch.cuda.synchronize
void synchronize(c10::Device device);

/// Releases unused memory: memory in the accelerator's caching allocator and, with glibc, memory in the C heap
/// (`malloc_trim`).
/// Cost: the next allocations are slower. Call this function between phases, never within a step
/// Ref: torch.cuda.empty_cache
void empty_cache();
/// Releases unused memory in the C heap only. Call this function after large temporary allocations were freed.
void trim_heap();

}  // namespace bellows
