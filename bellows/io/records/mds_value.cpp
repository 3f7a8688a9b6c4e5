#include "bellows/io/records/mds_value.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bellows/core/error.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::io {

namespace {

struct MdsDtype {
  std::string_view name;
  c10::ScalarType dtype;
  uint8_t code;
};

constexpr std::array kMdsDtypes{
    MdsDtype{"uint8", c10::kByte, 8},   MdsDtype{"int8", c10::kChar, 9},       MdsDtype{"uint16", c10::kUInt16, 16},
    MdsDtype{"int16", c10::kShort, 17}, MdsDtype{"float16", c10::kHalf, 18},   MdsDtype{"uint32", c10::kUInt32, 32},
    MdsDtype{"int32", c10::kInt, 33},   MdsDtype{"float32", c10::kFloat, 34},  MdsDtype{"uint64", c10::kUInt64, 64},
    MdsDtype{"int64", c10::kLong, 65},  MdsDtype{"float64", c10::kDouble, 66},
};

struct PilMode {
  std::string_view name;
  int64_t channels;
  c10::ScalarType dtype;
};

constexpr std::array kPilModes{
    PilMode{"L", 1, c10::kByte},      PilMode{"LA", 2, c10::kByte},      PilMode{"RGB", 3, c10::kByte},
    PilMode{"RGBA", 4, c10::kByte},   PilMode{"P", 1, c10::kByte},       PilMode{"PA", 2, c10::kByte},
    PilMode{"La", 2, c10::kByte},     PilMode{"RGBa", 4, c10::kByte},    PilMode{"RGBX", 4, c10::kByte},
    PilMode{"CMYK", 4, c10::kByte},   PilMode{"YCbCr", 3, c10::kByte},   PilMode{"HSV", 3, c10::kByte},
    PilMode{"LAB", 3, c10::kByte},    PilMode{"I", 1, c10::kInt},        PilMode{"F", 1, c10::kFloat},
    PilMode{"I;16", 1, c10::kUInt16}, PilMode{"I;16L", 1, c10::kUInt16},
};

const MdsDtype* find_mds_dtype(std::string_view name) {
  const auto found = std::find_if(kMdsDtypes.begin(), kMdsDtypes.end(), [&](auto& row) { return row.name == name; });
  return found == kMdsDtypes.end() ? nullptr : &*found;
}

const MdsDtype* find_mds_dtype(c10::ScalarType dtype) {
  const auto found = std::find_if(kMdsDtypes.begin(), kMdsDtypes.end(), [&](auto& row) { return row.dtype == dtype; });
  return found == kMdsDtypes.end() ? nullptr : &*found;
}

/// Returns nothing if the product overflows or a size is not positive: the format does not support empty arrays.
std::optional<uint64_t> mds_array_bytes(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) {
    if (size <= 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string bytes_needed(std::optional<uint64_t> bytes) {
  return bytes ? c10::str(*bytes, " bytes") : std::string("positive sizes and fewer bytes");
}

/// Width codes of streaming: 0 one byte, 1 two, 2 four, 3 eight.
uint64_t load_size(ByteSpan bytes, size_t offset, unsigned width_code) {
  switch (width_code) {
    case 0:
      return load_little<uint8_t>(bytes, offset);
    case 1:
      return load_little<uint16_t>(bytes, offset);
    case 2:
      return load_little<uint32_t>(bytes, offset);
    default:
      return load_little<uint64_t>(bytes, offset);
  }
}

}  // namespace

std::string_view mds_dtype_name(c10::ScalarType dtype) {
  const MdsDtype* found = find_mds_dtype(dtype);
  return found ? found->name : std::string_view();
}

std::vector<std::string> mds_encoding_names() {
  std::vector<std::string> names{"bytes",       "str",        "int",       "ndarray",   "str_int", "str_float",
                                 "str_decimal", "pil",        "jpeg",      "jpegarray", "png",     "jpeg_array",
                                 "list[pil]",   "list[jpeg]", "list[png]", "json"};
  for (const MdsDtype& row : kMdsDtypes) names.emplace_back(row.name);
  return names;
}

MdsEncoding MdsEncoding::parse(std::string_view text) {
  MdsEncoding encoding;
  encoding.text_ = text;
  const std::string_view name = text.substr(0, text.find(':'));
  TORCH_CHECK_VALUE(name != "pkl",
                    "the encoding pkl (Python pickle) is not supported, because reading it can run code. Write the "
                    "column as json, ndarray or bytes.");
  const auto kind = [&]() -> std::optional<Kind> {
    if (name == "bytes") return Kind::bytes;
    if (name == "str" || name == "str_decimal") return Kind::text;
    if (name == "json") return Kind::json;
    if (name == "ndarray") return Kind::ndarray;
    if (name == "str_int") return Kind::text_int;
    if (name == "str_float") return Kind::text_float;
    if (name == "jpeg" || name == "png") return Kind::image;
    if (name == "pil") return Kind::pil;
    if (name == "jpegarray" || name == "jpeg_array") return Kind::jpeg_array;
    if (name == "list[pil]" || name == "list[jpeg]" || name == "list[png]") return Kind::list;
    if (name == "int" || find_mds_dtype(name)) return Kind::number;
    return std::nullopt;
  }();
  TORCH_CHECK_VALUE(kind && (*kind == Kind::ndarray || name == text), "no encoding has the name ", printable(text), ".",
                    did_you_mean(text, mds_encoding_names()));
  encoding.kind_ = *kind;
  if (kind == Kind::number) encoding.dtype_ = name == "int" ? c10::kLong : find_mds_dtype(name)->dtype;
  if (name != text) encoding.read_ndarray_options(text.substr(name.size() + 1));
  return encoding;
}

/// Parses "float32" or "float32:3,4". With an empty text, dtype and shape may vary.
void MdsEncoding::read_ndarray_options(std::string_view options) {
  if (options.empty()) return;
  const size_t colon = options.find(':');
  const MdsDtype* dtype = find_mds_dtype(options.substr(0, colon));
  TORCH_CHECK_VALUE(dtype, "expected ndarray:DTYPE or ndarray:DTYPE:SIZE,SIZE,…, found ", printable(text_), ".");
  dtype_ = dtype->dtype;
  if (colon == std::string_view::npos) return;
  for (std::string_view rest = options.substr(colon + 1);;) {
    const size_t comma = rest.find(',');
    const auto size = parse_int(rest.substr(0, comma));
    TORCH_CHECK_VALUE(size && *size > 0 && shape_.size() < 63, "expected up to 63 positive sizes in ", printable(text_),
                      ".");
    shape_.push_back(*size);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  TORCH_CHECK_VALUE(mds_array_bytes(shape_, *dtype_).value_or(UINT64_MAX) <= UINT32_MAX, printable(text_),
                    " is larger than the limit of a shard, 4 GiB.");
}

uint64_t MdsEncoding::fixed_size() const {
  if (kind_ == Kind::number) return c10::elementSize(*dtype_);
  return shape_.empty() ? 0 : *mds_array_bytes(shape_, *dtype_);
}

size_t MdsEncoding::max_dims() const {
  if (kind_ == Kind::pil) return 3;
  return kind_ != Kind::ndarray ? 0 : shape_.empty() ? 63 : shape_.size();
}

MdsValue MdsEncoding::decode(ByteSpan bytes, std::vector<int64_t>& sizes, Bytes& buffer) const {
  switch (kind_) {
    case Kind::number:
      TORCH_CHECK_VALUE(bytes.size() == fixed_size(), "expected ", fixed_size(), " bytes of ", text_, ", found ",
                        bytes.size(), ".");
      return {bytes, true, *dtype_};
    case Kind::ndarray:
      return decode_ndarray(bytes, sizes);
    case Kind::pil:
      return decode_pil(bytes, sizes);
    case Kind::text_int:
    case Kind::text_float:
      return decode_number_text(bytes, buffer);
    default:
      check_bytes(bytes);
      return {bytes};
  }
}

MdsValue MdsEncoding::decode_ndarray(ByteSpan bytes, std::vector<int64_t>& sizes) const {
  const size_t total = bytes.size(), first = sizes.size();
  const auto check = [&](bool good) {
    TORCH_CHECK_VALUE(good, "the header of an array (", text_,
                      ") is damaged: ", printable(as_text(bytes.first(std::min<size_t>(bytes.size(), 12)))), ".");
  };
  auto dtype = dtype_;
  if (!dtype) {
    check(!bytes.empty());
    for (const MdsDtype& row : kMdsDtypes) {
      if (row.code == load_little<uint8_t>(bytes)) dtype = row.dtype;
    }
    check(dtype.has_value());
    bytes = bytes.subspan(1);
  }
  if (shape_.empty()) {
    check(!bytes.empty());
    const unsigned code = load_little<uint8_t>(bytes);
    const size_t dims = code >> 2, width = size_t{1} << (code & 3);
    check(bytes.size() - 1 >= dims * width);
    for (size_t i = 0; i < dims; ++i) {
      const uint64_t size = load_size(bytes, 1 + i * width, code & 3);
      check(size > 0 && size <= total);
      sizes.push_back(static_cast<int64_t>(size));
    }
    bytes = bytes.subspan(1 + dims * width);
  } else {
    sizes.insert(sizes.end(), shape_.begin(), shape_.end());
  }
  const c10::IntArrayRef shape = c10::IntArrayRef(sizes).slice(first);
  const auto needed = mds_array_bytes(shape, *dtype);
  TORCH_CHECK_VALUE(needed == bytes.size(), "an array of ", c10::toString(*dtype), " ", shape, " needs ",
                    bytes_needed(needed), ", found ", bytes.size(), ".");
  return {bytes, true, *dtype};
}

MdsValue MdsEncoding::decode_pil(ByteSpan bytes, std::vector<int64_t>& sizes) const {
  TORCH_CHECK_VALUE(bytes.size() >= 12 && load_little<uint32_t>(bytes, 8) <= bytes.size() - 12,
                    "the header of an image (pil) is damaged: it has ", bytes.size(), " bytes.");
  const uint32_t width = load_little<uint32_t>(bytes), height = load_little<uint32_t>(bytes, 4);
  const size_t length = load_little<uint32_t>(bytes, 8);
  const std::string_view name = as_text(bytes.subspan(12, length));
  const auto mode = std::find_if(kPilModes.begin(), kPilModes.end(), [&](auto& row) { return row.name == name; });
  TORCH_CHECK_VALUE(mode != kPilModes.end(), "an image (pil) has the mode ", printable(name),
                    "; expected L, LA, RGB, RGBA or another mode with whole bytes per channel.");
  bytes = bytes.subspan(12 + length);
  const std::array<int64_t, 3> shape{height, width, mode->channels};
  const auto needed = mds_array_bytes(shape, mode->dtype);
  TORCH_CHECK_VALUE(needed == bytes.size(), "an image (pil) of ", width, " x ", height, ", mode ", name, ", needs ",
                    bytes_needed(needed), ", found ", bytes.size(), ".");
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return {bytes, true, mode->dtype};
}

MdsValue MdsEncoding::decode_number_text(ByteSpan bytes, Bytes& buffer) const {
  const std::string_view text = as_text(bytes);
  uint64_t bits = 0;
  bool good = false;
  if (kind_ == Kind::text_int) {
    const auto value = parse_int(text);
    good = value.has_value();
    bits = std::bit_cast<uint64_t>(value.value_or(0));
  } else {
    const auto value = parse_float(text);
    good = value.has_value();
    bits = std::bit_cast<uint64_t>(value.value_or(0));
  }
  TORCH_CHECK_VALUE(good, "expected a number (", text_, kind_ == Kind::text_int ? ", 64 bits" : "", "), found ",
                    printable(text), ".");
  const size_t at = buffer.size();
  buffer.resize(at + sizeof(bits));
  std::memcpy(buffer.data() + at, &bits, sizeof(bits));
  return {ByteSpan(buffer).subspan(at), true, kind_ == Kind::text_int ? c10::kLong : c10::kDouble};
}

void MdsEncoding::check_bytes(ByteSpan bytes) const {
  if (kind_ == Kind::text || kind_ == Kind::json)
    TORCH_CHECK_VALUE(is_utf8(as_text(bytes)), "expected UTF-8 (", text_, "), found ", printable(as_text(bytes)), ".");
  if (kind_ == Kind::jpeg_array || kind_ == Kind::list) mds_list(text_, bytes);
}

void MdsEncoding::encode(const MdsValue& value, c10::IntArrayRef sizes, std::string& out) const {
  const bool takes_text = kind_ == Kind::text_int || kind_ == Kind::text_float;
  const bool takes_array = kind_ == Kind::number || kind_ == Kind::ndarray || kind_ == Kind::pil || takes_text;
  TORCH_CHECK_VALUE(value.is_array == takes_array || (takes_text && !value.is_array), "the encoding ", text_,
                    " stores ", takes_array ? "arrays, not files" : "files and text, not arrays", ".");
  if (!value.is_array) {
    std::vector<int64_t> unused;
    Bytes number;
    decode(value.bytes, unused, number);  // do not write values that cannot be read
    if (kind_ == Kind::json)
      TORCH_CHECK_VALUE(nlohmann::json::accept(as_text(value.bytes)), "expected JSON, found ",
                        printable(as_text(value.bytes)), ".");
    out += as_text(value.bytes);
    return;
  }
  if (kind_ == Kind::ndarray) return encode_ndarray(value, sizes, out);
  if (kind_ == Kind::pil) return encode_pil(value, sizes, out);
  TORCH_CHECK_VALUE(sizes.empty(), "the encoding ", text_, " stores one number, found an array ", sizes, ".");
  if (takes_text) return encode_number_text(value, out);
  TORCH_CHECK_VALUE(value.dtype == *dtype_, "expected ", text_, ", found ", c10::toString(value.dtype), ".");
  out += as_text(value.bytes);
}

void MdsEncoding::encode_ndarray(const MdsValue& value, c10::IntArrayRef sizes, std::string& out) const {
  const MdsDtype* dtype = find_mds_dtype(value.dtype);
  TORCH_CHECK_VALUE(dtype, "MDS does not support values of ", c10::toString(value.dtype), ".");
  TORCH_CHECK_VALUE(!dtype_ || *dtype_ == value.dtype, "expected ", text_, ", found ", c10::toString(value.dtype), ".");
  TORCH_CHECK_VALUE(!sizes.empty() && sizes.size() < 64 && mds_array_bytes(sizes, value.dtype) == value.bytes.size(),
                    "an ndarray column stores non-empty arrays of 1 to 63 dimensions, found ", sizes, ".");
  if (!dtype_) out += static_cast<char>(dtype->code);
  if (shape_.empty()) {
    const auto largest = static_cast<uint64_t>(*std::max_element(sizes.begin(), sizes.end()));
    const unsigned code = largest <= UINT8_MAX ? 0 : largest <= UINT16_MAX ? 1 : largest <= UINT32_MAX ? 2 : 3;
    out += static_cast<char>(sizes.size() << 2 | code);
    for (const int64_t size : sizes) {
      for (unsigned i = 0; i < 1U << code; ++i) out += static_cast<char>(size >> (8 * i) & 0xff);
    }
  } else {
    TORCH_CHECK_VALUE(sizes == c10::IntArrayRef(shape_), "expected ", text_, ", found ", sizes, ".");
  }
  out += as_text(value.bytes);
}

void MdsEncoding::encode_pil(const MdsValue& value, c10::IntArrayRef sizes, std::string& out) const {
  const auto mode = std::find_if(kPilModes.begin(), kPilModes.end(), [&](const PilMode& row) {
    return sizes.size() == 3 && row.channels == sizes[2] && row.dtype == value.dtype;
  });
  TORCH_CHECK_VALUE(mode != kPilModes.end() && sizes[0] <= UINT32_MAX && sizes[1] <= UINT32_MAX,
                    "a pil column stores images [height, width, channels] of uint8 with 1 to 4 channels, or of int32, "
                    "uint16 or float32 with one channel, found ",
                    c10::toString(value.dtype), " ", sizes, ".");
  append_little(out, static_cast<uint32_t>(sizes[1]));
  append_little(out, static_cast<uint32_t>(sizes[0]));
  append_little(out, static_cast<uint32_t>(mode->name.size()));
  out += mode->name;
  out += as_text(value.bytes);
}

void MdsEncoding::encode_number_text(const MdsValue& value, std::string& out) const {
  const bool whole = kind_ == Kind::text_int;
  TORCH_CHECK_VALUE(value.dtype == (whole ? c10::kLong : c10::kDouble), "expected ", whole ? "int64" : "float64", " (",
                    text_, "), found ", c10::toString(value.dtype), ".");
  const auto bits = load_little<uint64_t>(value.bytes);
  out += whole ? std::to_string(std::bit_cast<int64_t>(bits)) : float_text(std::bit_cast<double>(bits));
}

std::vector<ByteSpan> mds_list(std::string_view encoding, ByteSpan bytes) {
  const bool is_list = encoding.starts_with("list[");
  TORCH_CHECK_VALUE(is_list || encoding == "jpegarray" || encoding == "jpeg_array", "the encoding ",
                    printable(encoding), " has no parts.");
  const auto check = [&](bool good) {
    TORCH_CHECK_VALUE(good, "the sizes of the parts (", encoding, ") do not match its ", bytes.size(), " bytes.");
  };
  const size_t start = is_list ? 4 : 0;  // a list starts with four bytes reserved for later versions
  check(bytes.size() >= start + 4);
  const uint64_t count = load_little<uint32_t>(bytes, start);
  check(count <= (bytes.size() - start - 4) / 4);
  ByteSpan rest = bytes.subspan(start + 4 + 4 * count);
  std::vector<ByteSpan> parts;
  parts.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t size = load_little<uint32_t>(bytes, start + 4 + 4 * i);
    check(size <= rest.size());
    parts.push_back(rest.first(size));
    rest = rest.subspan(size);
  }
  check(rest.empty());
  return parts;
}

}  // namespace bellows::io
