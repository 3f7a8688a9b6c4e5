#include <cstring>

#include "bellows/io/crc32.h"
#include "bellows/io/records/pack.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

constexpr size_t footer_bytes = 64;

void store_little(io::Bytes& bytes, size_t offset, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) bytes[offset + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

/// The same pack with right checksums of index and footer: they would keep mutations out.
io::Bytes mended(io::ByteSpan bytes) {
  io::Bytes copy(bytes.begin(), bytes.end());
  if (copy.size() < 2 * footer_bytes) return copy;
  const size_t footer = copy.size() - footer_bytes;
  const auto index = io::load_little<uint64_t>(bytes, footer), size = io::load_little<uint64_t>(bytes, footer + 8);
  if (index <= footer && size <= footer - index)
    store_little(copy, footer + 36, io::crc32c(bytes.subspan(index, size)));
  store_little(copy, footer + 52, io::crc32c(io::ByteSpan(copy).subspan(footer, 52)));
  std::memcpy(copy.data() + copy.size() - 8, "BWPKEND\n", 8);
  return copy;
}

void read_pack(io::ByteSpan bytes, io::PackVerify verify) {
  rejecting([&] {
    const io::PackReader reader(bytes, "fuzz", verify);
    reader.block_starts();
    for (int64_t i = 0; i < reader.size(); ++i) {
      rejecting([&] {
        const io::PackRecord record = reader.record(i);
        touch(io::as_bytes(record.key()));
        for (size_t k = 0; k < record.size(); ++k) {
          touch(record.item(k).bytes);
          touch(record.item(k).shape);
        }
      });
    }
  });
}

}  // namespace

void pack(io::ByteSpan bytes) {
  read_pack(bytes, io::PackVerify::first_use);
  read_pack(mended(bytes), io::PackVerify::never);
}

}  // namespace bellows::fuzz
