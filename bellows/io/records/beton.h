#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/io/network/partial_file.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// What a field of a .beton file holds, by its number there.
enum class BetonType : uint8_t { float64 = 0, int64 = 1, image = 2, bytes = 3, array = 4, json = 5, tensor = 6 };

/// A column of a .beton file.
struct BetonField {
  std::string name;  ///< 1 to 16 ASCII characters
  BetonType type = BetonType::bytes;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< of an array or tensor
  std::vector<int64_t> sizes;                     ///< of an array or tensor: 1 to 32 of them
  bool operator==(const BetonField&) const = default;
};

/// One field of one sample.
struct BetonValue {
  /// A number: its 8 bytes. An image: a JPEG file, or RGB pixels row by row. JSON: the text without the NUL that ends it
  /// in the file. An array or tensor: its values.
  ByteSpan bytes;
  uint64_t offset = 0;            ///< of `bytes` in the file, when read
  bool is_jpeg = false;           ///< of an image
  int64_t height = 0, width = 0;  ///< of an image; up to 65,535
};

/// Whether the file begins as a .beton file of version 2 does. The format has no magic number: all that is known of the
/// header and of the fields' descriptions has to fit.
bool is_beton(ByteSpan bytes);

/// Reads FFCV's .beton files, version 2, sample by sample in any order. Nothing is copied.
///
/// Each value is checked when it is read: its pointer has to stand in the allocation table with the size that the value
/// says, inside one page of the file. The format has no checksums: damage to the values themselves goes unnoticed.
/// Cost:    opening reads the rows and the allocation table, and keeps 4 bytes for each value that a pointer leads to
/// Threads: reading is safe from all threads
/// Ref:     ffcv/reader.py, ffcv/types.py
class BetonReader {
 public:
  /// Throws: c10::ValueError – missing, no .beton file of version 2, truncated, fields of a type of the user's own, array
  ///         types that libtorch lacks
  explicit BetonReader(const std::string& path) : BetonReader(std::make_shared<const MappedFile>(path)) {}
  explicit BetonReader(std::shared_ptr<const MappedFile> file);
  /// Params: bytes – a file's content, which outlives the reader
  ///         where – names it in errors
  BetonReader(ByteSpan bytes, std::string where);

  int64_t size() const { return size_; }
  const std::vector<BetonField>& fields() const { return fields_; }
  uint64_t page_size() const { return page_size_; }

  /// Params: sample – in [0, size()); field – in fields()
  /// Throws: c10::ValueError – damaged: file, sample, field, byte offset, what was expected and found
  BetonValue read(int64_t sample, size_t field) const { return read(sample, field, bytes_); }
  /// The same out of other memory with the file's content, where the reader's own has no more than the tables. Numbers
  /// are views into the reader's.
  BetonValue read(int64_t sample, size_t field, ByteSpan content) const;
  /// The number of the page where the sample's data begins, as its row says; 0 when nothing of it is in a page.
  uint64_t page(int64_t sample) const;

  const std::string& path() const { return where_; }

 private:
  void read_header();
  void read_fields(uint64_t count);
  void read_table(uint64_t begin);
  BetonField read_field(uint64_t at) const;
  void read_array_type(ByteSpan arguments, uint64_t at, BetonField& field) const;
  std::string at(int64_t sample, size_t field) const;
  ByteSpan row(int64_t sample) const;
  ByteSpan data(int64_t sample, size_t field, uint64_t expected, ByteSpan content) const;
  BetonValue read_image(int64_t sample, size_t field, ByteSpan content) const;

  std::string where_;
  std::shared_ptr<const MappedFile> file_;  // null: the bytes are the caller's
  ByteSpan bytes_;
  int64_t size_ = 0;
  uint64_t page_size_ = 0, rows_begin_ = 0, pages_begin_ = 0, pages_end_ = 0;
  std::vector<BetonField> fields_;
  std::vector<size_t> offsets_;  // of the fields in a row
  size_t row_bytes_ = 0;
  std::vector<size_t> pointers_;  // fields whose values lie in pages
  std::vector<uint32_t> sizes_;   // [sample][pointer] as the allocation table says
};

/// Fetches what a BetonReader of `file` looks at when it is made: header, rows, allocation table.
void need_beton_tables(PartialFile& file);

/// Writes a .beton file of version 2 as FFCV's writer lays it out; it appears under its name only by close().
///
/// A sample never crosses a page: one that does not fit any more begins a new one.
/// Cost: memory for one page, and a row and a table entry a sample (about 50 bytes with one image and a label)
/// Ref:  ffcv/writer.py, ffcv/memory_allocator.py
class BetonWriter {
 public:
  /// Params: fields    – 1 to 1000
  ///         page_size – bytes, a power of two from 2 MiB to 2 GiB; a sample has to fit into one page
  /// Throws: c10::ValueError – page_size; a field's name, twice the same name, an array without values or of a type
  ///         that NumPy lacks; c10::Error – the folder is missing or not writable
  BetonWriter(const std::string& path, std::vector<BetonField> fields, uint64_t page_size = 8 << 20);

  /// Adds a sample.
  /// Params: values – one for each of the fields, in their order
  /// Throws: c10::ValueError – a value that does not fit its field, or a sample larger than a page: nothing was added;
  ///         c10::Error – disk full and the like
  void add(const std::vector<BetonValue>& values);
  int64_t size() const { return size_; }
  /// Ends the file and puts it in place. Without it, nothing is left behind.
  void close();

 private:
  struct Allocation {
    uint64_t sample, pointer, size;
  };
  uint64_t value_bytes(size_t field, const BetonValue& value) const;
  uint64_t allocate(uint64_t size);
  void flush_page();
  void move_pages_behind(uint64_t rows_end);
  std::string head(uint64_t table_begin) const;

  AtomicFile file_;
  std::vector<BetonField> fields_;
  uint64_t page_size_;
  std::vector<size_t> offsets_;  // of the fields in a row
  size_t row_bytes_ = 0;
  int64_t size_ = 0;
  std::string page_;  // the one that is being filled
  std::string rows_;
  std::vector<Allocation> table_;
};

}  // namespace bellows::io
