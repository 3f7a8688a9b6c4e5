#include "bellows/io/records/pack_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::io {

namespace {

enum PackKind : uint8_t { encoded_file = 0, array_of_fixed_shape = 1, array_of_any_shape = 2 };

constexpr size_t field_head_bytes = 8;  // u16 length of the name, u8 kind, u8 dtype, u32 dims

/// Takes one definition from the front of `bytes`; zero bytes pad it to a multiple of eight.
PackField parse_pack_field(ByteSpan& bytes, uint64_t at, std::string_view where) {
  const auto malformed = [&](std::string_view what) {
    TORCH_CHECK_VALUE(false, where, ": expected the definition of a field at byte ", at, ", found ", what, ".");
  };
  if (bytes.size() < field_head_bytes) malformed("the end of the table");
  const size_t name_bytes = load_little<uint16_t>(bytes), kind = load_little<uint8_t>(bytes, 2),
               dtype = load_little<uint8_t>(bytes, 3), dims = load_little<uint32_t>(bytes, 4);
  if (kind > array_of_any_shape) malformed("an unknown kind");
  if (name_bytes == 0 || name_bytes > kMaxPackName) malformed("a name with an invalid length");
  if (dims > kMaxPackDims || (kind != array_of_fixed_shape && dims > 0)) malformed("too many dimensions");
  const size_t used = field_head_bytes + 8 * dims + name_bytes;
  if (round_up(used, 8) > bytes.size()) malformed("the end of the table");
  PackField field{.name = std::string(as_text(bytes.subspan(field_head_bytes + 8 * dims, name_bytes))),
                  .is_array = kind != encoded_file,
                  .dtype = static_cast<c10::ScalarType>(dtype),
                  .fixed_shape = kind == array_of_fixed_shape,
                  .shape = {}};
  if (field.is_array && !is_pack_dtype(field.dtype)) malformed("an unknown number type");
  for (size_t i = 0; i < dims; ++i)
    field.shape.push_back(static_cast<int64_t>(load_little<uint64_t>(bytes, field_head_bytes + 8 * i)));
  if (field.fixed_shape && !pack_array_bytes(field.dtype, field.shape)) malformed("an impossible shape");
  bytes = bytes.subspan(round_up(used, 8));
  return field;
}

}  // namespace

bool is_pack_dtype(c10::ScalarType dtype) {
  using enum c10::ScalarType;
  switch (dtype) {
    case Byte:
    case Char:
    case Short:
    case Int:
    case Long:
    case Half:
    case Float:
    case Double:
    case ComplexFloat:
    case ComplexDouble:
    case Bool:
    case BFloat16:
    case Float8_e5m2:
    case Float8_e4m3fn:
    case UInt16:
    case UInt32:
    case UInt64:
      return true;
    default:
      return false;
  }
}

std::optional<uint64_t> pack_array_bytes(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  constexpr uint64_t limit = uint64_t{1} << 62;
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size > 0 && bytes > limit / static_cast<uint64_t>(size)) return std::nullopt;
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

std::optional<PackBlockHeader> parse_pack_block_header(ByteSpan bytes) {
  if (!as_text(bytes).starts_with(kPackMagic) || load_little<uint32_t>(bytes, 8) != kPackVersion) return std::nullopt;
  return PackBlockHeader{.crc = load_little<uint32_t>(bytes, 12),
                         .bytes = load_little<uint64_t>(bytes, 16),
                         .number = load_little<uint64_t>(bytes, 24),
                         .first_sample = load_little<uint64_t>(bytes, 32),
                         .samples = load_little<uint32_t>(bytes, 40),
                         .field_bytes = load_little<uint32_t>(bytes, 44),
                         .page_bytes = load_little<uint64_t>(bytes, 48)};
}

void append_pack_block_header(std::string& out, const PackBlockHeader& header) {
  out += kPackMagic;
  append_little(out, kPackVersion);
  append_little(out, header.crc);
  append_little(out, header.bytes);
  append_little(out, header.number);
  append_little(out, header.first_sample);
  append_little(out, header.samples);
  append_little(out, header.field_bytes);
  append_little(out, header.page_bytes);
  append_little(out, uint64_t{0});
}

void parse_pack_fields(ByteSpan bytes, uint64_t at, std::string_view where, std::vector<PackField>& fields) {
  const uint64_t end = at + bytes.size();
  while (!bytes.empty()) {
    TORCH_CHECK_VALUE(fields.size() < kMaxPackFields, where, ": expected at most ", kMaxPackFields,
                      " fields, found more at byte ", end - bytes.size(), ".");
    fields.push_back(parse_pack_field(bytes, end - bytes.size(), where));
  }
}

void append_pack_field(std::string& out, const PackField& field) {
  append_little(out, static_cast<uint16_t>(field.name.size()));
  out.push_back(static_cast<char>(!field.is_array     ? encoded_file
                                  : field.fixed_shape ? array_of_fixed_shape
                                                      : array_of_any_shape));
  out.push_back(static_cast<char>(field.is_array ? field.dtype : c10::ScalarType::Byte));
  append_little(out, static_cast<uint32_t>(field.shape.size()));
  for (const int64_t size : field.shape) append_little(out, static_cast<uint64_t>(size));
  out += field.name;
  out.append((8 - field.name.size() % 8) % 8, '\0');
}

PackRecord parse_pack_record(ByteSpan bytes, uint64_t offset, std::span<const PackField> fields,
                             std::string_view where) {
  const auto fits = [&] {
    if (bytes.size() < kPackRecordHead || load_little<uint64_t>(bytes) != bytes.size()) return false;
    const uint64_t key = load_little<uint32_t>(bytes, 8), items = load_little<uint32_t>(bytes, 12);
    return kPackRecordHead + items * kPackItem + key <= bytes.size();
  };
  TORCH_CHECK_VALUE(fits(), where, ": expected a sample of ", bytes.size(), " bytes at byte ", offset,
                    ", found other content: the pack is damaged.");
  PackRecord record;
  record.bytes_ = bytes;
  record.offset_ = offset;
  record.fields_ = fields;
  record.where_ = where;
  record.items_ = load_little<uint32_t>(bytes, 12);
  record.key_ = as_text(bytes.subspan(kPackRecordHead + record.items_ * kPackItem, load_little<uint32_t>(bytes, 8)));
  return record;
}

PackRecord::Item PackRecord::item(size_t k) const {
  const size_t entry = kPackRecordHead + k * kPackItem;
  const uint64_t number = load_little<uint32_t>(bytes_, entry), dims = load_little<uint32_t>(bytes_, entry + 4),
                 offset = load_little<uint64_t>(bytes_, entry + 8), size = load_little<uint64_t>(bytes_, entry + 16);
  const auto fits = [&] {
    if (number >= fields_.size() || offset > bytes_.size() || size > bytes_.size() - offset) return false;
    const PackField& field = fields_[number];
    if (!field.is_array) return dims == 0;
    if (field.fixed_shape) return dims == 0 && pack_array_bytes(field.dtype, field.shape) == size;
    return dims <= kMaxPackDims && 8 * dims <= offset;
  };
  TORCH_CHECK_VALUE(fits(), where_, ": sample at byte ", offset_, ": field ", k,
                    " is outside the sample, or is not one of the ", fields_.size(),
                    " fields of the pack: the pack is damaged.");
  Item item{&fields_[number], bytes_.subspan(offset, size), offset_ + offset,
            bytes_.subspan(offset - 8 * dims, 8 * dims)};
  if (item.field->is_array && !item.field->fixed_shape) {
    int64_t sizes[kMaxPackDims];
    for (size_t i = 0; i < dims; ++i) sizes[i] = static_cast<int64_t>(load_little<uint64_t>(item.shape, 8 * i));
    TORCH_CHECK_VALUE(pack_array_bytes(item.field->dtype, {sizes, dims}) == size, where_, ": array ",
                      printable(item.field->name), " at byte ", item.offset, " has ", size,
                      " bytes, which does not match its shape ", c10::IntArrayRef(sizes, dims), ".");
  }
  return item;
}

}  // namespace bellows::io
