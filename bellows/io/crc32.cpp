#include "bellows/io/crc32.h"

#include <zlib.h>

namespace bellows::io {

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace bellows::io
