#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bellows::io {

/// CRC-32 of zip, gzip and PNG (polynomial 0x04C11DB7, reflected).
/// Params: crc – the value of the preceding bytes, for incremental computation
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc = 0);

/// CRC-32C of TFRecord files and packs (Castagnoli's polynomial 0x1EDC6F41, reflected).
/// Params: crc – the value of the preceding bytes, for incremental computation
/// Cost:   8 bytes in three cycles with SSE4.2; about 1 ns per byte without it
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace bellows::io
