#pragma once

#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// A way to compress whole files, as MDS names it: "zstd", "zstd:7", "gz", "bz2", "br", "snappy".
struct Codec {
  enum class Kind { brotli, bzip2, gzip, snappy, zstd };
  Kind kind = Kind::zstd;
  int level = 0;          ///< effort; of snappy 0
  std::string extension;  ///< "zstd", without the level

  /// Without a level: 11 of br, 9 of bz2 and gz, 3 of zstd.
  /// Throws: c10::ValueError – another name (nearest match), a level that the codec lacks
  static Codec parse(std::string_view text);
};

/// Ref: streaming.base.compression.compress; the same bytes where the libraries behind it are the same, but for gzip's
/// time stamp, which is 0 here
Bytes compress(ByteSpan bytes, const Codec& codec);

/// Unpacks what has to come to `size` bytes. Memory grows with what is really there, not with what is claimed.
/// Params: where – names the input in errors
/// Throws: c10::ValueError – corrupt, truncated, another size
Bytes uncompress(ByteSpan bytes, const Codec& codec, uint64_t size, std::string_view where);

/// The same for deflate's bare stream, as zip files hold it.
Bytes inflate_raw(ByteSpan bytes, uint64_t size, std::string_view where);

}  // namespace bellows::io
