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

// A pack stores samples in blocks. A block consists of complete pages and has a checksum. An index at the end of the
// pack gives access to any sample with one read. docs/formats.md describes the layout.

inline constexpr uint64_t kMinPackPage = 4096, kMaxPackPage = uint64_t{1} << 30;

/// A field of a pack's samples.
struct PackField {
  std::string name;
  bool is_array = false;                          ///< true: an array; false: the bytes of an encoded file
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< dtype of an array
  bool fixed_shape = false;                       ///< true: all arrays have `shape`; false: each array has its own
  std::vector<int64_t> shape;
};

/// Selects when the checksum of a block is verified.
enum class PackVerify {
  first_use,  ///< when one of its samples is first read
  always,     ///< each time one of its samples is read
  never       ///< never; the index and the bounds of all samples are checked anyway
};

/// A view of one sample in a pack.
class PackRecord {
 public:
  struct Item {
    const PackField* field = nullptr;
    ByteSpan bytes;       ///< arrays are aligned to 64 bytes if the memory of the file is aligned to 64 bytes
    uint64_t offset = 0;  ///< position of `bytes` in the file
    ByteSpan shape;       ///< sizes of an array without a fixed shape, eight bytes each
  };

  std::string_view key() const { return key_; }
  size_t size() const { return items_; }
  /// Params: k – index below size()
  /// Throws: c10::ValueError if the item is not within the sample, or if its field is unknown
  Item item(size_t k) const;

 private:
  friend PackRecord parse_pack_record(ByteSpan, uint64_t, std::span<const PackField>, std::string_view);
  ByteSpan bytes_;
  uint64_t offset_ = 0;
  std::span<const PackField> fields_;
  std::string_view where_, key_;
  size_t items_ = 0;
};

/// Reads packs. Nothing is copied, not even the index.
/// Threads: thread-safe
class PackReader {
 public:
  /// Checks the header, the footer and the complete index.
  /// Throws: c10::ValueError if the file is missing, not a pack, of a newer version, truncated or damaged (the message
  ///         states the path and the byte offset)
  explicit PackReader(const std::string& path, PackVerify verify = PackVerify::first_use);
  explicit PackReader(std::shared_ptr<const MappedFile> file, PackVerify verify = PackVerify::first_use);
  /// Params: bytes – must outlive the reader
  ///         where – name of the pack for error messages
  PackReader(ByteSpan bytes, std::string where, PackVerify verify = PackVerify::first_use);

  int64_t size() const { return static_cast<int64_t>(samples_); }
  /// Returns a sample, which is valid while the reader exists.
  /// Params: index – in [0, size())
  /// Cost:   if PackVerify requires it, one pass over the block for its checksum
  /// Throws: c10::ValueError if the block is damaged, or if the file was truncated after it was opened
  PackRecord record(int64_t index) const;
  /// Like record(index), but reads from `content`, which must be the content of the file. Use this function if the
  /// reader's own memory contains only the index.
  PackRecord record(int64_t index, ByteSpan content) const;
  /// The fields in the order of their first use.
  const std::vector<PackField>& fields() const { return fields_; }
  /// Returns the index of the first sample of each non-empty block.
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

  std::shared_ptr<const MappedFile> file_;  // null: the bytes belong to the caller
  ByteSpan bytes_;
  std::string where_;
  PackVerify verify_;
  uint64_t page_bytes_ = 0, index_offset_ = 0, samples_ = 0, blocks_ = 0;
  ByteSpan sample_table_, block_table_;
  std::vector<PackField> fields_;
  struct Verified;
  std::shared_ptr<Verified> verified_;
};

/// Fetches the parts of `file` that the constructor of PackReader reads: header, index and footer.
void need_pack_index(PartialFile& file);

/// One field of a sample that is written to a pack.
struct PackValue {
  std::string_view name;
  ByteSpan bytes;
  bool is_array = false;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< dtype of an array
  c10::IntArrayRef sizes;                         ///< sizes of an array
};

struct PackWriterOptions {
  /// Size of a page, which must be a power of two. Larger pages waste less space, because at the end of each page, the
  /// space of about half a sample remains unused. Smaller pages are verified faster if only one of their samples is
  /// read.
  uint64_t page_bytes = uint64_t{4} << 20;
  /// true: the pack is written to `PATH.partial`, which remains if the writer is not closed. The next writer resumes
  /// it.
  bool resumable = false;
};

/// Writes a pack. The file appears under its name when close() is called. Equal samples give equal bytes.
/// Cost: memory for one block (a page, or one larger sample), and 16 bytes for each sample written
class PackWriter {
 public:
  /// Throws: c10::ValueError if page_bytes is not a power of two or is out of range. c10::Error if the folder is not
  ///         writable
  explicit PackWriter(const std::string& path, PackWriterOptions options = {});
  ~PackWriter();

  /// The number of samples so far. A resumable writer starts with the samples in the complete blocks of an earlier
  /// writer, except for the last of these blocks. Continue with sample number size().
  int64_t size() const;
  /// The number of bytes of the file so far, including the current block.
  uint64_t bytes() const;
  /// Throws: c10::ValueError if a name occurs twice, if an array's bytes do not match its sizes, or if packs do not
  ///         support a dtype
  void add(std::string_view key, std::span<const PackValue> values);
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows::io
