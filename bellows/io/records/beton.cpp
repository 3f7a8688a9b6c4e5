#include "bellows/io/records/beton.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "bellows/core/round_up.h"
#include "bellows/io/tensors/npy.h"

namespace bellows::io {

namespace {

/// Offsets and sizes in NumPy's layout.
namespace beton {

constexpr uint16_t kVersion = 2;
constexpr size_t kHeaderBytes = 24;
constexpr size_t kNameBytes = 16, kArgumentBytes = 1024;
constexpr size_t kFieldBytes = 1 + kNameBytes + kArgumentBytes;
constexpr size_t kMaxDims = 32;
constexpr size_t kMaxFields = 1000;  // a limit of Bellows; the format allows 65,535
constexpr size_t kTypeLengthAt = 8 * kMaxDims, kTypeAt = kTypeLengthAt + 8;  // in the arguments of an array
constexpr size_t kEntryBytes = 24;
constexpr size_t kImagePointerAt = 5;  // after u8 mode, u16 width, u16 height

bool is_number(BetonType type) {
  return type == BetonType::float64 || type == BetonType::int64;
}
bool is_array(BetonType type) {
  return type == BetonType::array || type == BetonType::tensor;
}

/// Offset of a field's pointer in its part of the row.
size_t pointer_at(BetonType type) {
  return type == BetonType::image ? kImagePointerAt : 0;
}

/// Size of a row and the offsets of the fields in it.
struct RowLayout {
  std::vector<size_t> offsets;
  size_t bytes = 0;
};

/// The layout of numpy.dtype(…, align=True): numbers and arrays' pointers are aligned to 8, packed records to 1. The
/// row is padded to its largest alignment.
RowLayout row_layout(const std::vector<BetonField>& fields) {
  RowLayout layout;
  bool aligned = false;
  for (const BetonField& field : fields) {
    const bool word = is_number(field.type) || is_array(field.type);
    if (word) layout.bytes = round_up(layout.bytes, 8);
    layout.offsets.push_back(layout.bytes);
    layout.bytes += word ? 8 : field.type == BetonType::image ? 13 : 16;
    aligned = aligned || word;
  }
  if (aligned) layout.bytes = round_up(layout.bytes, 8);
  return layout;
}

/// Bytes of an array's values. The sizes were checked: their product is at most a page.
uint64_t array_bytes(const BetonField& field) {
  uint64_t bytes = c10::elementSize(field.dtype);
  for (const int64_t size : field.sizes) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

}  // namespace beton

constexpr uint32_t kNotAllocated = UINT32_MAX;

/// The type's name in `[["", "<f4"]]`; nothing for other texts, such as a record of several types.
std::optional<std::string> single_type(std::string_view text) {
  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool fits = document.is_array() && document.size() == 1 && document[0].is_array() && document[0].size() == 2 &&
                    document[0][1].is_string();
  return fits ? std::optional(document[0][1].get<std::string>()) : std::nullopt;
}

bool known_type(uint8_t type) {
  return type <= static_cast<uint8_t>(BetonType::tensor);
}

}  // namespace

bool is_beton(ByteSpan bytes) {
  if (bytes.size() < beton::kHeaderBytes || load_little<uint16_t>(bytes) != beton::kVersion) return false;
  const uint64_t fields = load_little<uint16_t>(bytes, 2);
  const bool fits = fields > 0 && fields * beton::kFieldBytes <= bytes.size() - beton::kHeaderBytes &&
                    std::has_single_bit(load_little<uint32_t>(bytes, 4));
  for (uint64_t i = 0; fits && i < fields; ++i) {
    const auto type = std::to_integer<uint8_t>(bytes[beton::kHeaderBytes + i * beton::kFieldBytes]);
    if (!known_type(type) && type != 255) return false;
  }
  return fits;
}

BetonReader::BetonReader(std::shared_ptr<const MappedFile> file)
    : where_(file->path()), file_(std::move(file)), bytes_(file_->bytes()) {
  read_header();
}

BetonReader::BetonReader(ByteSpan bytes, std::string where) : where_(std::move(where)), bytes_(bytes) {
  read_header();
}

void BetonReader::read_header() {
  TORCH_CHECK_VALUE(is_beton(bytes_), where_, ": expected a .beton file of version ", beton::kVersion, ", found ",
                    describe_content(bytes_), ".");
  page_size_ = load_little<uint32_t>(bytes_, 4);
  const auto samples = load_little<uint64_t>(bytes_, 8), table = load_little<uint64_t>(bytes_, 16);
  TORCH_CHECK_VALUE(
      table > 0, where_,
      ": the file is incomplete, because its header (byte 16) has no allocation table. Write the file again.");
  TORCH_CHECK_VALUE(table <= bytes_.size(), where_, ": truncated: the allocation table begins at byte ", table,
                    ", but the file ends at byte ", bytes_.size(), ".");
  read_fields(load_little<uint16_t>(bytes_, 2));
  TORCH_CHECK_VALUE(rows_begin_ <= table && samples <= (table - rows_begin_) / row_bytes_, where_, ": expected ",
                    samples, " rows of ", row_bytes_, " bytes between byte ", rows_begin_,
                    " and the allocation table at byte ", table, ": the file is truncated or corrupt.");
  size_ = static_cast<int64_t>(samples);
  const uint64_t rows_end = rows_begin_ + samples * row_bytes_;
  pages_begin_ = round_up(rows_end, page_size_);
  pages_end_ = table;
  read_table(table);
}

void BetonReader::read_fields(uint64_t count) {
  TORCH_CHECK_VALUE(count <= beton::kMaxFields, where_, ": expected at most ", beton::kMaxFields, " fields, found ",
                    count, " (byte 2).");
  for (uint64_t i = 0; i < count; ++i) {
    fields_.push_back(read_field(beton::kHeaderBytes + i * beton::kFieldBytes));
    if (!beton::is_number(fields_.back().type)) pointers_.push_back(i);
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(fields_[j].name != fields_[i].name, where_, ": two fields are called ",
                        printable(fields_[i].name), ".");
    }
  }
  beton::RowLayout layout = beton::row_layout(fields_);
  offsets_ = std::move(layout.offsets);
  row_bytes_ = layout.bytes;
  rows_begin_ = beton::kHeaderBytes + count * beton::kFieldBytes;
}

BetonField BetonReader::read_field(uint64_t at) const {
  const ByteSpan description = bytes_.subspan(at, beton::kFieldBytes);
  const std::string_view name = as_text(description.subspan(1, beton::kNameBytes));
  BetonField field;
  field.name = std::string(name.substr(0, name.find('\0')));
  const auto type = std::to_integer<uint8_t>(description[0]);
  TORCH_CHECK_VALUE(known_type(type), where_, ": field ", printable(field.name), " (byte ", at,
                    ") has a custom type of the writer (255), whose layout is not stored in the file.");
  field.type = static_cast<BetonType>(type);
  if (beton::is_array(field.type)) read_array_type(description.subspan(1 + beton::kNameBytes), at, field);
  return field;
}

void BetonReader::read_array_type(ByteSpan arguments, uint64_t at, BetonField& field) const {
  const auto length = load_little<uint64_t>(arguments, beton::kTypeLengthAt);
  TORCH_CHECK_VALUE(length <= arguments.size() - beton::kTypeAt, where_, ": field ", printable(field.name), " (byte ",
                    at, ") describes its type with ", length, " bytes, but the limit is ",
                    arguments.size() - beton::kTypeAt, ".");
  const std::string_view text = as_text(arguments.subspan(beton::kTypeAt, length));
  const auto name = single_type(text);
  const auto dtype = name ? numpy_type(*name) : std::nullopt;
  TORCH_CHECK_VALUE(dtype, where_, ": field ", printable(field.name), " (byte ", at,
                    ") contains arrays of the NumPy type ", printable(text, 80),
                    "; expected one little-endian number type, such as [[\"\", \"<f4\"]].");
  field.dtype = *dtype;
  uint64_t bytes = c10::elementSize(*dtype);
  for (size_t dim = 0; dim < beton::kMaxDims; ++dim) {
    const auto size = load_little<uint64_t>(arguments, 8 * dim);
    if (size == 0) break;
    TORCH_CHECK_VALUE(size <= page_size_ / bytes, where_, ": field ", printable(field.name), " (byte ", at,
                      ") contains arrays that are larger than a page of ", page_size_, " bytes: size ", size,
                      " in dim ", dim, ".");
    bytes *= size;
    field.sizes.push_back(static_cast<int64_t>(size));
  }
  TORCH_CHECK_VALUE(!field.sizes.empty(), where_, ": field ", printable(field.name), " (byte ", at,
                    ") contains arrays without a size.");
}

/// Each value in a page has one entry; the entries of a sample are in the order of its fields.
void BetonReader::read_table(uint64_t begin) {
  const size_t values = static_cast<size_t>(size_) * pointers_.size();
  TORCH_CHECK_VALUE(bytes_.size() - begin == values * beton::kEntryBytes, where_, ": expected ", values,
                    " entries of 24 bytes in the allocation table at byte ", begin, ", found ", bytes_.size() - begin,
                    " bytes: the file is truncated or corrupt.");
  sizes_.assign(values, kNotAllocated);
  for (uint64_t at = begin; at < bytes_.size(); at += beton::kEntryBytes) {
    const auto sample = load_little<uint64_t>(bytes_, at), pointer = load_little<uint64_t>(bytes_, at + 8);
    if (sample >= static_cast<uint64_t>(size_)) continue;  // reading the sample reports the missing entry
    const ByteSpan values_row = row(static_cast<int64_t>(sample));
    for (size_t k = 0; k < pointers_.size(); ++k) {
      const size_t i = pointers_[k];
      uint32_t& size = sizes_[sample * pointers_.size() + k];
      if (size != kNotAllocated ||
          load_little<uint64_t>(values_row, offsets_[i] + beton::pointer_at(fields_[i].type)) != pointer)
        continue;
      size = static_cast<uint32_t>(std::min<uint64_t>(load_little<uint64_t>(bytes_, at + 16), kNotAllocated - 1));
      break;
    }
  }
}

ByteSpan BetonReader::row(int64_t sample) const {
  return bytes_.subspan(rows_begin_ + static_cast<uint64_t>(sample) * row_bytes_, row_bytes_);
}

std::string BetonReader::at(int64_t sample, size_t field) const {
  const uint64_t byte = rows_begin_ + static_cast<uint64_t>(sample) * row_bytes_ + offsets_[field];
  return c10::str(where_, ": sample ", sample, ", ", printable(fields_[field].name), " (its row at byte ", byte, ")");
}

/// The data that the field's pointer refers to.
/// Params: expected – size in bytes; UINT64_MAX: the size in the allocation table
ByteSpan BetonReader::data(int64_t sample, size_t field, uint64_t expected, ByteSpan content) const {
  const auto pointer = load_little<uint64_t>(row(sample), offsets_[field] + beton::pointer_at(fields_[field].type));
  const auto k = static_cast<size_t>(std::find(pointers_.begin(), pointers_.end(), field) - pointers_.begin());
  const uint64_t size = sizes_[static_cast<size_t>(sample) * pointers_.size() + k];
  TORCH_CHECK_VALUE(size != kNotAllocated, at(sample, field), " points to byte ", pointer,
                    ", where the allocation table has no entry for it: the file is corrupt.");
  TORCH_CHECK_VALUE(expected == UINT64_MAX || size == expected, at(sample, field), ": expected ", expected,
                    " bytes at byte ", pointer, ", but the allocation table has ", size, ": the file is corrupt.");
  if (size == 0) return {};  // FFCV's pointers of empty values may be arbitrary
  const bool inside = pointer >= pages_begin_ && size <= pages_end_ && pointer <= pages_end_ - size;
  TORCH_CHECK_VALUE(inside && pointer / page_size_ == (pointer + size - 1) / page_size_, at(sample, field),
                    ": expected ", size, " bytes inside one page of ", page_size_, " bytes between byte ", pages_begin_,
                    " and byte ", pages_end_, ", found a pointer to byte ", pointer, ": the file is corrupt.");
  return content.subspan(pointer, size);
}

BetonValue BetonReader::read_image(int64_t sample, size_t field, ByteSpan content) const {
  const ByteSpan fields = row(sample).subspan(offsets_[field]);
  const auto mode = std::to_integer<int>(fields[0]);
  BetonValue value;
  value.is_jpeg = mode == 0;
  value.width = load_little<uint16_t>(fields, 1);
  value.height = load_little<uint16_t>(fields, 3);
  TORCH_CHECK_VALUE(mode <= 1, at(sample, field), ": expected image mode 0 (jpg) or 1 (raw), found ", mode, ".");
  TORCH_CHECK_VALUE(value.width > 0 && value.height > 0, at(sample, field), ": expected an image with pixels, found ",
                    value.width, " x ", value.height, ".");
  value.bytes =
      data(sample, field, value.is_jpeg ? UINT64_MAX : static_cast<uint64_t>(3 * value.width * value.height), content);
  TORCH_CHECK_VALUE(!value.is_jpeg || as_text(value.bytes).starts_with("\xff\xd8"), at(sample, field),
                    ": expected a JPEG, found ", describe_content(value.bytes), ".");
  return value;
}

BetonValue BetonReader::read(int64_t sample, size_t field, ByteSpan content) const {
  TORCH_CHECK_VALUE(sample >= 0 && sample < size_ && field < fields_.size(), where_, ": expected a sample in [0, ",
                    size_, ") and a field in [0, ", fields_.size(), "), got ", sample, " and ", field, ".");
  TORCH_CHECK_VALUE(content.size() == bytes_.size(), where_, ": the file had ", bytes_.size(),
                    " bytes when it was opened, and it now has ", content.size(), ".");
  const BetonType type = fields_[field].type;
  BetonValue value;
  if (beton::is_number(type)) {
    value.bytes = row(sample).subspan(offsets_[field], 8);
  } else if (type == BetonType::image) {
    value = read_image(sample, field, content);
  } else if (beton::is_array(type)) {
    value.bytes = data(sample, field, beton::array_bytes(fields_[field]), content);
  } else {
    value.bytes = data(sample, field, load_little<uint64_t>(row(sample), offsets_[field] + 8), content);
    if (type == BetonType::json) {
      const size_t end = as_text(value.bytes).find('\0');
      TORCH_CHECK_VALUE(end != std::string_view::npos, at(sample, field), ": expected JSON that ends in a NUL, found ",
                        printable(as_text(value.bytes)), ".");
      value.bytes = value.bytes.first(end);
    }
  }
  const ByteSpan from = beton::is_number(type) ? bytes_ : content;
  if (value.bytes.data()) value.offset = static_cast<uint64_t>(value.bytes.data() - from.data());
  return value;
}

uint64_t BetonReader::page(int64_t sample) const {
  if (pointers_.empty()) return 0;
  const size_t field = pointers_.front();
  return load_little<uint64_t>(row(sample), offsets_[field] + beton::pointer_at(fields_[field].type)) / page_size_;
}

void need_beton_tables(PartialFile& file) {
  constexpr uint64_t likely_head = 64 << 10;  // contains all fields and some rows, in one request
  file.need(0, likely_head);
  const ByteSpan bytes = file.bytes();
  if (bytes.size() < beton::kHeaderBytes) return;
  const uint64_t fields = load_little<uint16_t>(bytes, 2), samples = load_little<uint64_t>(bytes, 8),
                 table = load_little<uint64_t>(bytes, 16);
  const uint64_t rows_begin = beton::kHeaderBytes + fields * beton::kFieldBytes;
  file.need(0, rows_begin);
  if (!is_beton(bytes) || samples > bytes.size()) return;
  std::vector<BetonField> types(fields);
  for (uint64_t i = 0; i < fields; ++i)
    types[i].type = static_cast<BetonType>(bytes[beton::kHeaderBytes + i * beton::kFieldBytes]);
  file.need(rows_begin, rows_begin + samples * beton::row_layout(types).bytes);
  file.need(table, bytes.size());
}

namespace {

constexpr uint64_t kMinPageBytes = 2 << 20, kMaxPageBytes = uint64_t{2} << 30;
constexpr int64_t kMaxImageSideOfBeton = UINT16_MAX;

void check_beton_field(const BetonField& field, uint64_t page_size) {
  const bool ascii = std::all_of(field.name.begin(), field.name.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  TORCH_CHECK_VALUE(!field.name.empty() && field.name.size() <= beton::kNameBytes && ascii,
                    "BetonWriter: expected a field's name of 1 to ", beton::kNameBytes, " ASCII characters, got ",
                    printable(field.name), ".");
  if (!beton::is_array(field.type)) return;
  TORCH_CHECK_VALUE(!numpy_name(field.dtype).empty(), "BetonWriter: NumPy has no type for \"", field.name,
                    "\", which is ", c10::toString(field.dtype), ". Convert it first.");
  TORCH_CHECK_VALUE(!field.sizes.empty() && field.sizes.size() <= beton::kMaxDims, "BetonWriter: expected \"",
                    field.name, "\" to have 1 to ", beton::kMaxDims, " sizes, got ", field.sizes.size(),
                    ". Store a single number in a float or int field.");
  uint64_t bytes = c10::elementSize(field.dtype);
  for (const int64_t size : field.sizes) {
    TORCH_CHECK_VALUE(size > 0 && static_cast<uint64_t>(size) <= page_size / bytes, "BetonWriter: expected arrays \"",
                      field.name, "\" of at least one value and at most a page (", page_size, " bytes), got sizes ",
                      c10::IntArrayRef(field.sizes), ".");
    bytes *= static_cast<uint64_t>(size);
  }
}

void check_beton_image(const std::string& name, const BetonValue& image) {
  TORCH_CHECK_VALUE(image.height > 0 && image.height <= kMaxImageSideOfBeton && image.width > 0 &&
                        image.width <= kMaxImageSideOfBeton,
                    "BetonWriter: expected \"", name, "\" to have sides from 1 to ", kMaxImageSideOfBeton, ", got ",
                    image.height, " x ", image.width, ".");
  if (image.is_jpeg) {
    TORCH_CHECK_VALUE(as_text(image.bytes).starts_with("\xff\xd8"), "BetonWriter: expected \"", name,
                      "\" to be a JPEG, got ", describe_content(image.bytes), ".");
  } else {
    TORCH_CHECK_VALUE(image.bytes.size() == static_cast<size_t>(3 * image.height * image.width),
                      "BetonWriter: expected ", 3 * image.height * image.width, " bytes of RGB pixels for \"", name,
                      "\" of ", image.height, " x ", image.width, ", got ", image.bytes.size(), ".");
  }
}

/// The bytes after a field's type and name.
std::string beton_arguments(const BetonField& field) {
  std::string text;
  if (beton::is_array(field.type)) {
    for (const int64_t size : field.sizes) append_little(text, static_cast<uint64_t>(size));
    text.resize(beton::kTypeLengthAt);
    const std::string type = "[[\"\", \"" + std::string(numpy_name(field.dtype)) + "\"]]";
    append_little(text, uint64_t{type.size()});
    text += type;
  }
  text.resize(beton::kArgumentBytes);
  return text;
}

/// Replaces the 8 bytes at `at` by `value`.
void patch_little(std::string& text, size_t at, uint64_t value) {
  std::string bytes;
  append_little(bytes, value);
  text.replace(at, bytes.size(), bytes);
}

}  // namespace

BetonWriter::BetonWriter(const std::string& path, std::vector<BetonField> fields, uint64_t page_size)
    : file_(path), fields_(std::move(fields)), page_size_(page_size) {
  TORCH_CHECK_VALUE(std::has_single_bit(page_size) && page_size >= kMinPageBytes && page_size <= kMaxPageBytes,
                    "BetonWriter: expected a page size that is a power of two from ", kMinPageBytes, " to ",
                    kMaxPageBytes, ", got ", page_size, ".");
  TORCH_CHECK_VALUE(!fields_.empty() && fields_.size() <= beton::kMaxFields, "BetonWriter: expected 1 to ",
                    beton::kMaxFields, " fields, got ", fields_.size(), ".");
  for (size_t i = 0; i < fields_.size(); ++i) {
    check_beton_field(fields_[i], page_size);
    const auto same = [&](const BetonField& other) { return other.name == fields_[i].name; };
    TORCH_CHECK_VALUE(std::none_of(fields_.begin(), fields_.begin() + static_cast<std::ptrdiff_t>(i), same),
                      "BetonWriter: two fields have the name \"", fields_[i].name, "\".");
  }
  beton::RowLayout layout = beton::row_layout(fields_);
  offsets_ = std::move(layout.offsets);
  row_bytes_ = layout.bytes;
}

/// Size of the value in a page.
uint64_t BetonWriter::value_bytes(size_t field, const BetonValue& value) const {
  const BetonField& type = fields_[field];
  const uint64_t bytes = value.bytes.size();
  if (beton::is_number(type.type)) {
    TORCH_CHECK_VALUE(bytes == 8, "BetonWriter: expected 8 bytes for the number \"", type.name, "\", got ", bytes, ".");
    return 0;
  }
  if (type.type == BetonType::image) check_beton_image(type.name, value);
  if (beton::is_array(type.type)) {
    TORCH_CHECK_VALUE(bytes == beton::array_bytes(type), "BetonWriter: expected ", beton::array_bytes(type),
                      " bytes for \"", type.name, "\", got ", bytes, ".");
  }
  if (type.type != BetonType::json) return bytes;
  TORCH_CHECK_VALUE(as_text(value.bytes).find('\0') == std::string_view::npos, "BetonWriter: the JSON in \"", type.name,
                    "\" contains a NUL byte, which would end it.");
  return bytes + 1;
}

void BetonWriter::add(const std::vector<BetonValue>& values) {
  TORCH_CHECK_VALUE(values.size() == fields_.size(), "BetonWriter: expected ", fields_.size(), " values, got ",
                    values.size(), ".");
  uint64_t total = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bytes = value_bytes(i, values[i]);
    total += beton::is_number(fields_[i].type) ? 0 : std::max<uint64_t>(bytes, 1);
  }
  TORCH_CHECK_VALUE(total <= page_size_, "BetonWriter: expected a sample of at most one page (", page_size_,
                    " bytes), got a sample of ", total, ". Choose a larger page size.");
  if (total > page_size_ - page_.size()) flush_page();
  const size_t row = rows_.size();
  rows_.resize(row + row_bytes_);
  for (size_t i = 0; i < values.size(); ++i) {
    const BetonValue& value = values[i];
    const BetonType type = fields_[i].type;
    std::string part;
    if (beton::is_number(type)) {
      part = as_text(value.bytes);
    } else {
      if (type == BetonType::image) {
        part += static_cast<char>(value.is_jpeg ? 0 : 1);
        append_little(part, static_cast<uint16_t>(value.width));
        append_little(part, static_cast<uint16_t>(value.height));
      }
      const uint64_t bytes = value_bytes(i, value);
      append_little(part, allocate(bytes));
      page_.replace(page_.size() - std::max<uint64_t>(bytes, 1), value.bytes.size(), as_text(value.bytes));
      if (type == BetonType::bytes || type == BetonType::json) append_little(part, bytes);
    }
    rows_.replace(row + offsets_[i], part.size(), part);
  }
  ++size_;
}

/// Allocates zeroed space at the end of the page, if it fits. An empty value takes one byte: FFCV finds sizes by
/// pointer, so no two values may start at the same address.
uint64_t BetonWriter::allocate(uint64_t size) {
  // The first page is reserved for the header and the rows; see move_pages_behind.
  const uint64_t page_begin = std::max(file_.offset(), page_size_);
  const uint64_t pointer = page_begin + page_.size();
  page_.resize(page_.size() + std::max<uint64_t>(size, 1));
  table_.push_back({static_cast<uint64_t>(size_), pointer, size});
  return pointer;
}

void BetonWriter::flush_page() {
  if (page_.empty()) return;
  if (file_.offset() == 0) file_.write(std::string(page_size_, '\0'));
  page_.resize(page_size_);
  file_.write(page_);
  page_.clear();
}

/// Moves pages from the place of the rows to the end of the file: the number of rows was not known before.
void BetonWriter::move_pages_behind(uint64_t rows_end) {
  const uint64_t pages_end = file_.offset(), begin = round_up(rows_end, page_size_);
  std::map<uint64_t, uint64_t> moved;  // from, to
  Bytes page(page_size_);
  while (file_.offset() < begin) file_.write(page);
  for (uint64_t from = page_size_; from < std::min(begin, pages_end); from += page_size_) {
    file_.read_back(from, page);
    moved[from] = file_.offset();
    file_.write(page);
  }
  if (moved.empty()) return;
  const auto new_pointer = [&](uint64_t pointer) {
    const auto target = moved.find(pointer / page_size_ * page_size_);
    return target == moved.end() ? pointer : target->second + pointer % page_size_;
  };
  for (Allocation& entry : table_) entry.pointer = new_pointer(entry.pointer);
  for (size_t row = 0; row < rows_.size(); row += row_bytes_) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (beton::is_number(fields_[i].type)) continue;
      const size_t at = row + offsets_[i] + beton::pointer_at(fields_[i].type);
      patch_little(rows_, at, new_pointer(load_little<uint64_t>(as_bytes(rows_), at)));
    }
  }
}

/// The header and the fields' descriptions.
std::string BetonWriter::head(uint64_t table_begin) const {
  std::string text;
  append_little(text, beton::kVersion);
  append_little(text, static_cast<uint16_t>(fields_.size()));
  append_little(text, static_cast<uint32_t>(page_size_));
  append_little(text, static_cast<uint64_t>(size_));
  append_little(text, table_begin);
  for (const BetonField& field : fields_) {
    text += static_cast<char>(field.type);
    text += field.name + std::string(beton::kNameBytes - field.name.size(), '\0');
    text += beton_arguments(field);
  }
  return text;
}

void BetonWriter::close() {
  flush_page();
  const uint64_t rows_end = beton::kHeaderBytes + fields_.size() * beton::kFieldBytes + rows_.size();
  if (file_.offset() == 0) {  // all data is in the rows
    file_.write(head(rows_end));
    file_.write(rows_);
  } else {
    move_pages_behind(rows_end);
    const std::string first = head(file_.offset());
    file_.overwrite(0, as_bytes(first));
    file_.overwrite(first.size(), as_bytes(rows_));
  }
  std::string entries;
  for (const Allocation& entry : table_) {
    append_little(entries, entry.sample);
    append_little(entries, entry.pointer);
    append_little(entries, entry.size);
  }
  file_.write(entries);
  file_.commit();
}

}  // namespace bellows::io
