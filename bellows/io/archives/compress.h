#pragma once

#include <string>
#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// A compression format for whole files, in MDS notation: "zstd", "zstd:7", "gz", "bz2", "br", "snappy".
struct Codec {
  enum class Kind { brotli, bzip2, gzip, snappy, zstd };
  Kind kind = Kind::zstd;
  int level = 0;          ///< compression level; 0 for snappy
  std::string extension;  ///< "zstd", without the level

  /// Parses a codec. Default levels: 11 for br, 9 for bz2 and gz, 3 for zstd.
  /// Throws: c10::ValueError if the codec is unknown (the message suggests the nearest name) or does not have the level
  static Codec parse(std::string_view text);
};

/// Writes the same bytes as the reference if the underlying libraries are the same, except that gzip's time stamp is 0.
/// Ref: streaming.base.compression.compress
Bytes compress(ByteSpan bytes, const Codec& codec);

/// Decompresses bytes whose decompressed size must be `size`. Memory grows with the actual data, not with the declared
/// size.
/// Params: where – names the input in errors
/// Throws: c10::ValueError if the input is corrupt or truncated, or if its size differs
Bytes uncompress(ByteSpan bytes, const Codec& codec, uint64_t size, std::string_view where);

/// Like uncompress(), for raw deflate streams, as zip files contain them.
Bytes inflate_raw(ByteSpan bytes, uint64_t size, std::string_view where);

}  // namespace bellows::io
