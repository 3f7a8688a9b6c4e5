#include "bellows/io/crc32.h"

#include <zlib.h>

#include <array>
#include <cstdio>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "bellows/io/bytes.h"

namespace bellows::io {

namespace {

using Crc32cTables = std::array<std::array<uint32_t, 256>, 8>;

/// [0]: the remainder of each byte; [k]: of each byte followed by k zero bytes.
constexpr Crc32cTables crc32c_tables = [] {
  Crc32cTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t i = 0; i < 256; ++i) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xff];
  }
  return tables;
}();

/// Table-based, eight bytes per step, for processors without a CRC-32C instruction.
uint32_t crc32c_plain(ByteSpan bytes, uint32_t crc) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const uint64_t mixed = load_little<uint64_t>(bytes) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= crc32c_tables[7 - k][mixed >> (8 * k) & 0xff];
  }
  for (const std::byte byte : bytes)
    crc = (crc >> 8) ^ crc32c_tables[0][(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(ByteSpan bytes, uint32_t crc) {
  uint64_t wide = crc;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (const std::byte byte : bytes) crc = _mm_crc32_u8(crc, std::to_integer<uint8_t>(byte));
  return crc;
}

#endif

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool instruction = __builtin_cpu_supports("sse4.2");
  if (instruction) return ~crc32c_sse42(bytes, ~crc);
#endif
  return ~crc32c_plain(bytes, ~crc);
}

std::string crc32_text(uint32_t crc) {
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}

}  // namespace bellows::io
