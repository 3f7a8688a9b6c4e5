#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/io/network/partial_file.h"
#include "bellows/system/file.h"

namespace bellows::io {

// A pack holds samples in blocks of whole pages, each with a checksum, and an index at its end, so that any sample is
// one read. docs/formats.md has its layout.

inline constexpr uint64_t kMinPackPage = 4096, kMaxPackPage = uint64_t{1} << 30;

/// What a field of a pack's samples is.
struct PackField {
  std::string name;
  bool is_array = false;                          ///< else an encoded file: bytes
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< of an array
  bool fixed_shape = false;                       ///< of an array: all samples have `shape`, else each its own
  std::vector<int64_t> shape;
};

/// When the checksum of a block is looked at.
enum class PackVerify {
  first_use,  ///< by the first sample that is read from it
  always,     ///< by every sample
  never       ///< the index is checked all the same, and no sample reaches beyond its place
};

/// One sample of a pack, in place.
class PackRecord {
 public:
  struct Item {
    const PackField* field = nullptr;
    ByteSpan bytes;       ///< of an array: aligned to 64 bytes where the file's memory is
    uint64_t offset = 0;  ///< of `bytes` in the file
    ByteSpan shape;       ///< of an array without a fixed one: its sizes, eight bytes each
  };

  std::string_view key() const { return key_; }
  size_t size() const { return items_; }
  /// Params: k – below size()
  /// Throws: c10::ValueError – it reaches beyond the sample, or is no such field
  Item item(size_t k) const;

 private:
  friend PackRecord parse_pack_record(ByteSpan, uint64_t, std::span<const PackField>, std::string_view);
  ByteSpan bytes_;
  uint64_t offset_ = 0;
  std::span<const PackField> fields_;
  std::string_view where_, key_;
  size_t items_ = 0;
};

/// Reads packs. Copies nothing: the index, too, stays where it is.
/// Threads:  safe from all threads.
class PackReader {
 public:
  /// Checks header, footer and the whole index.
  /// Throws: c10::ValueError – missing, no pack, of a newer version, truncated, damaged: path and byte offset
  explicit PackReader(const std::string& path, PackVerify verify = PackVerify::first_use);
  explicit PackReader(std::shared_ptr<const MappedFile> file, PackVerify verify = PackVerify::first_use);
  /// Params: bytes – outlive the reader
  ///         where – names them in errors
  PackReader(ByteSpan bytes, std::string where, PackVerify verify = PackVerify::first_use);

  int64_t size() const { return static_cast<int64_t>(samples_); }
  /// Valid as long as the reader.
  /// Params: index – in [0, size())
  /// Cost:   one pass over the block for its checksum, as PackVerify says
  /// Throws: c10::ValueError – its block is damaged, the file was cut short since it was opened
  PackRecord record(int64_t index) const;
  /// The same out of other memory with the file's content, where the reader's own has no more than the index.
  PackRecord record(int64_t index, ByteSpan content) const;
  /// In the order of their first use.
  const std::vector<PackField>& fields() const { return fields_; }
  /// The first sample of each block that has any.
  std::vector<int64_t> block_starts() const;
  uint64_t page_bytes() const { return page_bytes_; }
  const std::string& path() const { return where_; }

 private:
  struct Block;
  void open();
  void read_footer();
  void check_blocks();
  void check_samples(const Block& block, uint64_t& end) const;
  Block block(uint64_t number) const;
  uint64_t block_at(uint64_t offset) const;
  void verify_block(uint64_t number, ByteSpan content) const;

  std::shared_ptr<const MappedFile> file_;  // null: the bytes are the caller's
  ByteSpan bytes_;
  std::string where_;
  PackVerify verify_;
  uint64_t page_bytes_ = 0, index_offset_ = 0, samples_ = 0, blocks_ = 0;
  ByteSpan sample_table_, block_table_;
  std::vector<PackField> fields_;
  struct Verified;
  std::shared_ptr<Verified> verified_;
};

/// Fetches what a PackReader of `file` looks at when it is made: header, index, footer.
void need_pack_index(PartialFile& file);

/// One field of a sample on its way into a pack.
struct PackValue {
  std::string_view name;
  ByteSpan bytes;
  bool is_array = false;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< of an array
  c10::IntArrayRef sizes;                         ///< of an array
};

struct PackWriterOptions {
  /// A power of two. Larger pages waste less at their ends (half a sample each); a smaller one is checked sooner when
  /// only one sample of it is wanted.
  uint64_t page_bytes = uint64_t{4} << 20;
  /// Writes into `PATH.partial`, which stays when the writer is not closed; the next one goes on with it.
  bool resumable = false;
};

/// Writes a pack; it appears under its name only by close(). Equal samples, equal bytes.
/// Cost: holds one block, that is a page or one larger sample, and 16 bytes for each sample written
class PackWriter {
 public:
  /// Throws: c10::ValueError – page_bytes no power of two or out of range; c10::Error – the folder is not writable
  explicit PackWriter(const std::string& path, PackWriterOptions options = {});
  ~PackWriter();

  /// Samples so far. Of a resumable writer, at once those that an earlier one left in whole, followed blocks: go on
  /// behind them.
  int64_t size() const;
  /// Bytes of the file so far, with the block that is being filled.
  uint64_t bytes() const;
  /// Throws: c10::ValueError – a name twice, an array whose bytes do not fit its sizes, a type that packs do not hold
  void add(std::string_view key, std::span<const PackValue> values);
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::io
