#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "bellows/io/records/beton_layout_impl.h"
#include "bellows/io/tensors/npy.h"

namespace bellows::io {

namespace {

constexpr uint32_t kNotAllocated = UINT32_MAX;

/// The type's name in `[["", "<f4"]]`; nothing when the text is something else, a record of several types say.
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
  TORCH_CHECK_VALUE(table > 0, where_,
                    ": the writer never finished this file: its header (byte 16) names no allocation "
                    "table. Write it again.");
  TORCH_CHECK_VALUE(table <= bytes_.size(), where_, ": truncated: the allocation table begins at byte ", table,
                    ", the file ends at byte ", bytes_.size(), ".");
  read_fields(load_little<uint16_t>(bytes_, 2));
  TORCH_CHECK_VALUE(rows_begin_ <= table && samples <= (table - rows_begin_) / row_bytes_, where_, ": expected ",
                    samples, " rows of ", row_bytes_, " bytes between byte ", rows_begin_,
                    " and the allocation table at byte ", table, ": the file is truncated or corrupt.");
  size_ = static_cast<int64_t>(samples);
  const uint64_t rows_end = rows_begin_ + samples * row_bytes_;
  pages_begin_ = (rows_end + page_size_ - 1) / page_size_ * page_size_;
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
                    ") is of a type of the writer's own (255), whose layout is not in the file.");
  field.type = static_cast<BetonType>(type);
  if (beton::is_array(field.type)) read_array_type(description.subspan(1 + beton::kNameBytes), at, field);
  return field;
}

void BetonReader::read_array_type(ByteSpan arguments, uint64_t at, BetonField& field) const {
  const auto length = load_little<uint64_t>(arguments, beton::kTypeLengthAt);
  TORCH_CHECK_VALUE(length <= arguments.size() - beton::kTypeAt, where_, ": field ", printable(field.name), " (byte ",
                    at, ") describes its type with ", length, " bytes; there is room for ",
                    arguments.size() - beton::kTypeAt, ".");
  const std::string_view text = as_text(arguments.subspan(beton::kTypeAt, length));
  const auto name = single_type(text);
  const auto dtype = name ? numpy_type(*name) : std::nullopt;
  TORCH_CHECK_VALUE(dtype, where_, ": field ", printable(field.name), " (byte ", at, ") holds arrays of NumPy's type ",
                    printable(text, 80), "; expected one little-endian number type, like [[\"\", \"<f4\"]].");
  field.dtype = *dtype;
  uint64_t bytes = c10::elementSize(*dtype);
  for (size_t dim = 0; dim < beton::kMaxDims; ++dim) {
    const auto size = load_little<uint64_t>(arguments, 8 * dim);
    if (size == 0) break;
    TORCH_CHECK_VALUE(size <= page_size_ / bytes, where_, ": field ", printable(field.name), " (byte ", at,
                      ") holds arrays that are larger than a page of ", page_size_, " bytes: size ", size, " in dim ",
                      dim, ".");
    bytes *= size;
    field.sizes.push_back(static_cast<int64_t>(size));
  }
  TORCH_CHECK_VALUE(!field.sizes.empty(), where_, ": field ", printable(field.name), " (byte ", at,
                    ") holds arrays without a size.");
}

/// Each value in a page has one entry; a sample's entries stand in the order of its fields.
void BetonReader::read_table(uint64_t begin) {
  const size_t values = static_cast<size_t>(size_) * pointers_.size();
  TORCH_CHECK_VALUE(bytes_.size() - begin == values * beton::kEntryBytes, where_, ": expected ", values,
                    " entries of 24 bytes in the allocation table at byte ", begin, ", found ", bytes_.size() - begin,
                    " bytes: the file is truncated or corrupt.");
  sizes_.assign(values, kNotAllocated);
  for (uint64_t at = begin; at < bytes_.size(); at += beton::kEntryBytes) {
    const auto sample = load_little<uint64_t>(bytes_, at), pointer = load_little<uint64_t>(bytes_, at + 8);
    if (sample >= static_cast<uint64_t>(size_)) continue;  // the sample that misses it is the one that complains
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

/// What the field's pointer leads to.
/// Params: expected – its bytes; UINT64_MAX: those that the allocation table says
ByteSpan BetonReader::data(int64_t sample, size_t field, uint64_t expected, ByteSpan content) const {
  const auto pointer = load_little<uint64_t>(row(sample), offsets_[field] + beton::pointer_at(fields_[field].type));
  const auto k = static_cast<size_t>(std::find(pointers_.begin(), pointers_.end(), field) - pointers_.begin());
  const uint64_t size = sizes_[static_cast<size_t>(sample) * pointers_.size() + k];
  TORCH_CHECK_VALUE(size != kNotAllocated, at(sample, field), " points to byte ", pointer,
                    ", where the allocation table has nothing of it: the file is corrupt.");
  TORCH_CHECK_VALUE(expected == UINT64_MAX || size == expected, at(sample, field), ": expected ", expected,
                    " bytes at byte ", pointer, ", the allocation table says ", size, ": the file is corrupt.");
  if (size == 0) return {};  // FFCV's pointers to nothing may lead anywhere
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
  TORCH_CHECK_VALUE(content.size() == bytes_.size(), where_, ": had ", bytes_.size(),
                    " bytes when it was opened, now it has ", content.size(), ".");
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
  constexpr uint64_t likely_head = 64 << 10;  // with all fields and some rows, in one request
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

}  // namespace bellows::io
