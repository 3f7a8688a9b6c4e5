#include <cstdio>

#include "bellows/checkpoint/format.h"
#include "bellows/io/crc32.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

/// With a last line that is right for what is before it.
std::string with_index_crc(std::string_view text) {
  constexpr std::string_view last = ",\n  \"crc32c\": \"";
  const std::string_view content = text.substr(0, text.rfind(last));
  char crc[16];
  std::snprintf(crc, sizeof(crc), "%08x", io::crc32c(io::as_bytes(content)));
  return std::string(content).append(last).append(crc).append("\"\n}\n");
}

}  // namespace

void checkpoint_index(io::ByteSpan bytes) {
  for (const std::string& text : {std::string(io::as_text(bytes)), with_index_crc(io::as_text(bytes))}) {
    rejecting([&] {
      const checkpoint::ShardedIndex index = checkpoint::parse_sharded_index(text, "fuzz");
      const std::string again = checkpoint::make_sharded_index(index);
      touch(io::as_bytes(again));
      checkpoint::parse_sharded_index(again, "fuzz");
    });
  }
}

}  // namespace bellows::fuzz
