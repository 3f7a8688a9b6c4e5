#include "bellows/io/crc32.h"

#include <zlib.h>

#include <array>

namespace bellows::io {

namespace {

/// The remainder of each byte.
constexpr std::array<uint32_t, 256> crc32c_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ crc32c_table[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return ~crc;
}

}  // namespace bellows::io
