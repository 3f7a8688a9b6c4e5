#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/io/network/partial_file.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// The type of a field, with its number in .beton files.
enum class BetonType : uint8_t { float64 = 0, int64 = 1, image = 2, bytes = 3, array = 4, json = 5, tensor = 6 };

/// A column of a .beton file.
struct BetonField {
  std::string name;  ///< 1 to 16 ASCII characters
  BetonType type = BetonType::bytes;
  c10::ScalarType dtype = c10::ScalarType::Byte;  ///< dtype of an array or tensor
  std::vector<int64_t> sizes;                     ///< sizes of an array or tensor; 1 to 32 dims
  bool operator==(const BetonField&) const = default;
};

/// One field of one sample.
struct BetonValue {
  /// The content depends on the type. A number has 8 bytes. An image is a JPEG file, or RGB pixels row by row. JSON is
  /// the text without the NUL that terminates it in the file. An array or tensor consists of its values.
  ByteSpan bytes;
  uint64_t offset = 0;            ///< position of `bytes` in the file; set by the reader
  bool is_jpeg = false;           ///< only for images
  int64_t height = 0, width = 0;  ///< only for images; up to 65,535
};

/// True if the file starts like a .beton file of version 2. The format has no magic number. The function therefore
/// checks the known properties of the header and of the field descriptions.
bool is_beton(ByteSpan bytes);

/// Reads FFCV's .beton files of version 2, with random access. Nothing is copied.
///
/// Each value is checked when it is read. The allocation table must contain the value's pointer and size, and the value
/// must be inside one page of the file. The format has no checksums, so damage to the values themselves is not
/// detected.
/// Cost:    opening reads the rows and the allocation table, and stores 4 bytes for each value that is in a page
/// Threads: reading is thread-safe
/// Ref:     ffcv/reader.py, ffcv/types.py
class BetonReader {
 public:
  /// Throws: c10::ValueError if the file is missing, truncated or not a .beton file of version 2; if it has fields of
  ///         custom types, or arrays of types that libtorch does not support
  explicit BetonReader(const std::string& path) : BetonReader(std::make_shared<const MappedFile>(path)) {}
  explicit BetonReader(std::shared_ptr<const MappedFile> file);
  /// Params: bytes – content of a file; must outlive the reader
  ///         where – name of the file for error messages
  BetonReader(ByteSpan bytes, std::string where);

  int64_t size() const { return size_; }
  const std::vector<BetonField>& fields() const { return fields_; }
  uint64_t page_size() const { return page_size_; }

  /// Params: sample – index in [0, size())
  ///         field – index in fields()
  /// Throws: c10::ValueError if the value is damaged (the message states the file, the sample, the field, the byte
  ///         offset, and the expected and actual content)
  BetonValue read(int64_t sample, size_t field) const { return read(sample, field, bytes_); }
  /// Like read(sample, field), but reads from `content`, which must be the content of the file. Use this function if
  /// the reader's own memory contains only the tables. Numbers are views into the reader's memory.
  BetonValue read(int64_t sample, size_t field, ByteSpan content) const;
  /// Returns the number of the page where the sample's data begins, as stored in its row. The number is 0 if no data of
  /// the sample is in a page.
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
  std::shared_ptr<const MappedFile> file_;  // null: the bytes belong to the caller
  ByteSpan bytes_;
  int64_t size_ = 0;
  uint64_t page_size_ = 0, rows_begin_ = 0, pages_begin_ = 0, pages_end_ = 0;
  std::vector<BetonField> fields_;
  std::vector<size_t> offsets_;  // offsets of the fields in a row
  size_t row_bytes_ = 0;
  std::vector<size_t> pointers_;  // fields whose values are in pages
  std::vector<uint32_t> sizes_;   // [sample][pointer], from the allocation table
};

/// Fetches the parts of `file` that the constructor of BetonReader reads: header, rows and allocation table.
void need_beton_tables(PartialFile& file);

/// Writes a .beton file of version 2 with the layout of FFCV's writer. The file appears under its name when close() is
/// called.
///
/// A sample is always inside one page. If it does not fit into the current page, a new page begins.
/// Cost: memory for one page, plus a row and a table entry per sample (about 50 bytes with one image and a label)
/// Ref:  ffcv/writer.py, ffcv/memory_allocator.py
class BetonWriter {
 public:
  /// Params: fields – 1 to 1000 fields
  ///         page_size – size of a page in bytes, a power of two from 2 MiB to 2 GiB; a sample must fit into one page
  /// Throws: c10::ValueError if page_size is invalid, if a field's name is invalid or occurs twice, or if an array has
  ///         no values or has a type that NumPy does not support. Throws c10::Error if the folder is missing or not
  ///         writable
  BetonWriter(const std::string& path, std::vector<BetonField> fields, uint64_t page_size = 8 << 20);

  /// Adds a sample.
  /// Params: values – one value per field, in the order of the fields
  /// Throws: c10::ValueError if a value does not match its field, or if the sample is larger than a page (nothing is
  ///         added). c10::Error if writing fails, for example because the disk is full
  void add(const std::vector<BetonValue>& values);
  int64_t size() const { return size_; }
  /// Completes the file and moves it into place. If close() is not called, no file remains.
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
  std::vector<size_t> offsets_;  // offsets of the fields in a row
  size_t row_bytes_ = 0;
  int64_t size_ = 0;
  std::string page_;  // the page being filled
  std::string rows_;
  std::vector<Allocation> table_;
};

}  // namespace bellows::io
