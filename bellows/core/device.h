#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace bellows {

/// Parses "cpu", "cuda" or "cuda:1" and checks that the device exists.
/// Throws: c10::ValueError if `text` is not a device or the device does not exist (the message lists the devices of
///         this machine)
c10::Device parse_device(std::string_view text);

/// Waits until all work queued on `device` is done. Returns immediately for the CPU.
/// Ref: torch.cuda.synchronize
void synchronize(c10::Device device);

/// Releases cached, unused memory: that of the accelerator's caching allocator and, on Linux, that of the C heap
/// (`malloc_trim`).
/// Cost: the next allocations are slower. Call it between phases, never inside a step.
/// Ref: torch.cuda.empty_cache
void empty_cache();
/// Releases the unused memory of the C heap only. Call it after large temporary allocations were freed.
void trim_heap();

}  // namespace bellows
