#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace bellows {

/// Parses "cpu", "cuda", "cuda:1"; checks that such a device is there.
/// Throws: c10::ValueError – what was given, what this build and machine have
c10::Device parse_device(std::string_view text);

/// Waits until all work queued on `device` is done. Nothing to wait for on the CPU.
/// Ref: torch.cuda.synchronize
void synchronize(c10::Device device);

/// Gives cached, unused memory back: the accelerator's caching allocator and, on Linux, the C heap (malloc_trim).
/// Cost: the next allocations are slower. Do this between phases, never inside a step.
/// Ref: torch.cuda.empty_cache
void empty_cache();
/// The latter alone: what was freed after much was allocated for a short while.
void trim_heap();

}  // namespace bellows
