#include "bellows/io/tensors/npy.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "bellows/io/tables/number_text.h"

namespace bellows::io {

namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kNpyMagic = "\x93NUMPY"sv;
constexpr size_t kAlignment = 64, kGrowthDigits = 21;  // numpy/lib/format.py

struct NpyDtype {
  std::string_view descr;
  c10::ScalarType dtype;
};

constexpr std::array kNpyDtypes{
    NpyDtype{"|b1", c10::kBool},         NpyDtype{"|u1", c10::kByte},           NpyDtype{"|i1", c10::kChar},
    NpyDtype{"<u2", c10::kUInt16},       NpyDtype{"<i2", c10::kShort},          NpyDtype{"<u4", c10::kUInt32},
    NpyDtype{"<i4", c10::kInt},          NpyDtype{"<u8", c10::kUInt64},         NpyDtype{"<i8", c10::kLong},
    NpyDtype{"<f2", c10::kHalf},         NpyDtype{"<f4", c10::kFloat},          NpyDtype{"<f8", c10::kDouble},
    NpyDtype{"<c8", c10::kComplexFloat}, NpyDtype{"<c16", c10::kComplexDouble},
};

/// Parser of the header's dict: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyHeaderText {
 public:
  NpyHeaderText(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  void read(std::string& descr, bool& fortran, std::vector<int64_t>& shape) {
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr") {
        has_descr = true;
        descr = read_descr();
      } else if (key == "fortran_order") {
        has_order = true;
        fortran = word() == "True";
      } else if (key == "shape") {
        has_shape = true;
        read_shape(shape);
      } else {
        fail();
      }
      if (!take(',') && peek() != '}') fail();
    }
    if (peek() != '\0' || !has_descr || !has_order || !has_shape) fail();
  }

 private:
  [[noreturn]] void fail() const {
    TORCH_CHECK_VALUE(false, where_, ": the header of the NumPy array is corrupt at its byte ", at_, ": ",
                      printable(text_.substr(std::min(at_, text_.size())), 40), ".");
  }
  /// The next character that is not a space; NUL at the end.
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail();
  }
  std::string_view quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail();
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail();
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  std::string_view word() {
    peek();
    const size_t begin = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_]))) ++at_;
    const std::string_view found = text_.substr(begin, at_ - begin);
    if (found != "True" && found != "False") fail();
    return found;
  }
  std::string read_descr() {
    TORCH_CHECK_VALUE(peek() != '[', where_,
                      ": the NumPy array has a structured dtype; expected one number per element. Save each field as a "
                      "separate array.");
    return std::string(quoted());
  }
  void read_shape(std::vector<int64_t>& shape) {
    shape.clear();
    expect('(');
    while (!take(')')) {
      peek();
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      const auto size = parse_int(text_.substr(begin, at_ - begin));
      if (!size || shape.size() == 64) fail();
      take('L');  // of Python 2
      shape.push_back(*size);
      if (!take(',') && peek() != ')') fail();
    }
  }

  std::string_view text_, where_;
  size_t at_ = 0;
};

c10::ScalarType dtype_of(const std::string& descr, std::string_view where) {
  if (const auto dtype = numpy_type(descr)) return *dtype;
  const std::string shown = printable(descr);
  const std::string_view kind = std::string_view(descr).substr(0, 2);
  TORCH_CHECK_VALUE(kind != "|O", where,
                    ": the NumPy array contains Python objects, which could run code when they are read. Save numbers: "
                    "array.astype(\"float32\").");
  TORCH_CHECK_VALUE(!descr.starts_with('>'), where, ": the NumPy array is big-endian (", shown,
                    "). Save it in little-endian order: array.astype(array.dtype.newbyteorder(\"<\")).");
  TORCH_CHECK_VALUE(false, where, ": the NumPy array has dtype ", shown,
                    "; expected bool, integers, float16 to float64 or complex numbers.");
}

/// Returns nothing if the product overflows.
std::optional<uint64_t> array_bytes(const std::vector<int64_t>& shape, uint64_t width) {
  uint64_t bytes = width;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size == 0) empty = true;
    if (size > 0 && __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

}  // namespace

std::string_view numpy_name(c10::ScalarType dtype) {
  const auto row = std::ranges::find(kNpyDtypes, dtype, &NpyDtype::dtype);
  return row == kNpyDtypes.end() ? "" : row->descr;
}

std::optional<c10::ScalarType> numpy_type(std::string_view name) {
  for (const NpyDtype& row : kNpyDtypes) {
    const bool single = row.descr[0] == '|' && name.size() == 3 && name.substr(1) == row.descr.substr(1);
    if (single || row.descr == name) return row.dtype;
  }
  return std::nullopt;
}

NpyArray parse_npy(ByteSpan bytes, std::string_view where) {
  TORCH_CHECK_VALUE(as_text(bytes).starts_with(kNpyMagic), where, ": expected a NumPy array, found ",
                    describe_content(bytes), ".");
  const bool has_version = bytes.size() >= 12;
  const int major = has_version ? std::to_integer<int>(bytes[6]) : 1;
  TORCH_CHECK_VALUE(major >= 1 && major <= 3, where, ": expected version 1 to 3 of the NumPy format, found ", major,
                    ".");
  const size_t start = major == 1 ? 10 : 12;
  const uint64_t length = !has_version ? bytes.size()
                          : major == 1 ? load_little<uint16_t>(bytes, 8)
                                       : load_little<uint32_t>(bytes, 8);
  TORCH_CHECK_VALUE(has_version && length <= bytes.size() - start, where, ": truncated: the header of the NumPy array ",
                    "has ", length, " bytes, but the file has ", bytes.size(), ".");
  NpyArray array;
  std::string descr;
  bool fortran = false;
  NpyHeaderText(as_text(bytes.subspan(start, length)), where).read(descr, fortran, array.shape);
  array.dtype = dtype_of(descr, where);
  TORCH_CHECK_VALUE(!fortran || array.shape.size() < 2, where,
                    ": the NumPy array is in Fortran order. Save it in C order: numpy.ascontiguousarray(array).");
  array.offset = start + length;
  const uint64_t there = bytes.size() - array.offset;
  const auto needed = array_bytes(array.shape, c10::elementSize(array.dtype));
  TORCH_CHECK_VALUE(needed && *needed == there, where, ": a NumPy array of ", c10::toString(array.dtype), " ",
                    c10::IntArrayRef(array.shape), " needs ",
                    needed ? c10::str(*needed, " bytes") : std::string("more bytes than can exist"), " from byte ",
                    array.offset, ", but the file has ", there, ".");
  array.bytes = bytes.subspan(array.offset);
  return array;
}

std::string make_npy_header(c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  const std::string_view descr = numpy_name(dtype);
  TORCH_CHECK_VALUE(!descr.empty(), "make_npy_header: NumPy has no dtype for ", c10::toString(dtype),
                    ". Convert it, or write safetensors.");
  std::string text = c10::str("{'descr': '", descr, "', 'fortran_order': False, 'shape': (");
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  text += shape.size() == 1 ? ",), }" : "), }";
  if (!shape.empty()) text.append(kGrowthDigits - std::to_string(shape[0]).size(), ' ');
  const size_t used = kNpyMagic.size() + 4 + text.size() + 1;
  text.append(kAlignment - used % kAlignment, ' ');
  text += '\n';
  std::string header(kNpyMagic);
  header += std::string("\1\0", 2);
  append_little(header, static_cast<uint16_t>(text.size()));
  return header + text;
}

}  // namespace bellows::io
