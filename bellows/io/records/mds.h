#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// One column of an MDS shard.
struct MdsColumn {
  std::string name;
  std::string encoding;  ///< see MdsEncoding
  uint64_t size = 0;     ///< bytes of every value; 0 when they differ
};

/// A file that index.json names.
struct MdsFile {
  std::string basename;
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> hashes;  ///< algorithm, hexadecimal digest
};

/// One shard as index.json describes it.
struct MdsShard {
  std::vector<MdsColumn> columns;   ///< sorted by name
  std::string compression;          ///< see Codec; "": none
  std::vector<std::string> hashes;  ///< algorithms
  uint64_t samples = 0;
  std::optional<uint64_t> size_limit;
  MdsFile raw;
  std::optional<MdsFile> zip;
};

/// Reads and checks index.json of an MDS data set, version 2.
/// Throws: c10::ValueError – no such JSON, a version or format that is not MDS 2, a size or encoding that cannot be, a
///         file name with a folder in it: which shard, which key, expected, found
/// Ref:    streaming/base/format/mds/reader.py
std::vector<MdsShard> parse_mds_index(std::string_view text, const std::string& where);

/// Ref: streaming's index.json, byte for byte
std::string make_mds_index(const std::vector<MdsShard>& shards);

/// The description of its columns that stands in a shard.
std::string make_mds_config(const MdsShard& shard);

/// Random access to the samples of one shard in memory.
/// Threads: safe from all threads
class MdsShardReader {
 public:
  /// Params: bytes, shard, where – outlive the reader; `where` names the bytes in errors
  /// Throws: c10::ValueError – another size or number of samples than the index says
  MdsShardReader(ByteSpan bytes, const MdsShard& shard, std::string_view where);

  /// Compares the columns that the shard itself names, where it does, with those of the index.
  /// Throws: c10::ValueError – they differ
  void check_columns() const;

  /// The encoded value of each column, in the columns' order.
  /// Throws: c10::ValueError – the sample's bytes are not within the shard, or its columns not within the sample
  void read(uint64_t sample, std::vector<ByteSpan>& values) const;

 private:
  ByteSpan bytes_;
  const MdsShard& shard_;
  std::string_view where_;
};

/// Puts a shard together in memory.
class MdsShardWriter {
 public:
  /// Params: shard – columns, compression, hashes and size limit
  explicit MdsShardWriter(const MdsShard& shard);

  /// The bytes that the shard would have with a sample of `sample_bytes` more.
  uint64_t size_with(uint64_t sample_bytes) const;
  /// Takes a sample: the sizes of its variable columns, then its columns.
  void add(std::string_view sample);
  uint64_t samples() const { return ends_.size(); }
  /// The whole shard; the writer is empty again.
  std::string take();

 private:
  std::string config_, samples_;
  std::vector<uint64_t> ends_;
};

}  // namespace bellows::io
