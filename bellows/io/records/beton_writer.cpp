#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <map>

#include "bellows/io/records/beton_layout_impl.h"
#include "bellows/io/tensors/npy.h"

namespace bellows::io {

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
                    "\", which is ", c10::toString(field.dtype), ". Convert it before.");
  TORCH_CHECK_VALUE(!field.sizes.empty() && field.sizes.size() <= beton::kMaxDims, "BetonWriter: expected \"",
                    field.name, "\" to have 1 to ", beton::kMaxDims, " sizes, got ", field.sizes.size(),
                    ". A single number goes into a float or int field.");
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

/// What stands behind a field's type and name.
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
                      "BetonWriter: two fields are called \"", fields_[i].name, "\".");
  }
  beton::RowLayout layout = beton::row_layout(fields_);
  offsets_ = std::move(layout.offsets);
  row_bytes_ = layout.bytes;
}

/// Bytes that the value takes in a page.
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
                    "\" has a NUL in it, which would end it.");
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
                    " bytes), got one of ", total, ". Choose larger pages.");
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

/// Zeroed room at the end of the page, where it fits. An empty value takes a byte: FFCV finds sizes by pointer, so no
/// two values may begin at the same one.
uint64_t BetonWriter::allocate(uint64_t size) {
  // One page is left for the header and the rows; see move_pages_behind.
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

/// Pages that stand where the rows have to end up go to the end of the file: how many rows there would be was not known.
void BetonWriter::move_pages_behind(uint64_t rows_end) {
  const uint64_t pages_end = file_.offset(), begin = (rows_end + page_size_ - 1) / page_size_ * page_size_;
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
  if (file_.offset() == 0) {  // all of it is in the rows
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
