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
  uint64_t size = 0;     ///< size of every value in bytes; 0 if sizes differ
};

/// A file named in index.json.
struct MdsFile {
  std::string basename;
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> hashes;  ///< algorithm and hexadecimal digest
};

/// The description of one shard in index.json.
struct MdsShard {
  std::vector<MdsColumn> columns;   ///< sorted by name
  std::string compression;          ///< see Codec; "" for no compression
  std::vector<std::string> hashes;  ///< hash algorithms
  uint64_t samples = 0;
  std::optional<uint64_t> size_limit;
  MdsFile raw;
  std::optional<MdsFile> zip;
};

/// Parses and checks the index.json of an MDS dataset of version 2.
/// Throws: c10::ValueError if the text is not JSON of MDS version 2, if a size or an encoding is invalid, or if a file
///         name contains a folder. The message states the shard, the key, and the expected and actual value
/// Ref:    streaming/base/format/mds/reader.py
std::vector<MdsShard> parse_mds_index(std::string_view text, const std::string& where);

/// Formats index.json.
/// Ref: MosaicML streaming, which writes the same bytes
std::string make_mds_index(const std::vector<MdsShard>& shards);

/// Returns the description of the columns that is stored in a shard.
std::string make_mds_config(const MdsShard& shard);

/// Gives random access to the samples of one shard in memory.
/// Threads: thread-safe
class MdsShardReader {
 public:
  /// Params: bytes, shard, where – must outlive the reader; `where` is the name of the bytes for error messages
  /// Throws: c10::ValueError if the size or the number of samples differs from the index
  MdsShardReader(ByteSpan bytes, const MdsShard& shard, std::string_view where);

  /// Compares the columns that are stored in the shard, if there are any, with those of the index.
  /// Throws: c10::ValueError if they differ
  void check_columns() const;

  /// Returns the encoded value of each column, in the order of the columns.
  /// Throws: c10::ValueError if the sample is not within the shard, or if its columns are not within the sample
  void read(uint64_t sample, std::vector<ByteSpan>& values) const;

 private:
  ByteSpan bytes_;
  const MdsShard& shard_;
  std::string_view where_;
};

/// Creates a shard in memory.
class MdsShardWriter {
 public:
  /// Params: shard – its columns, compression, hashes and size limit are used
  explicit MdsShardWriter(const MdsShard& shard);

  /// Returns the size in bytes that the shard would have with one more sample of `sample_bytes` bytes.
  uint64_t size_with(uint64_t sample_bytes) const;
  /// Adds an encoded sample, which consists of the sizes of its variable-size columns, followed by the values of all
  /// columns.
  void add(std::string_view sample);
  uint64_t samples() const { return ends_.size(); }
  /// Returns the complete shard and clears the writer.
  std::string take();

 private:
  std::string config_, samples_;
  std::vector<uint64_t> ends_;
};

}  // namespace bellows::io
