#include <c10/util/Exception.h>
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "bellows/data/text/unicode.h"

namespace bellows::data::unicode {

namespace {

constexpr char32_t last_character = 0x10FFFF;

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

char32_t next(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return text[at++];
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  bool good = first >= 0xC2 && first <= 0xF4 && at + length <= text.size();
  char32_t c = first & (0x7Fu >> length);
  for (size_t i = 1; good && i < length; ++i) {
    good = (byte(at + i) & 0xC0) == 0x80;
    c = c << 6 | (byte(at + i) & 0x3F);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  good = good && c >= least[length] && c <= last_character && (c < 0xD800 || c > 0xDFFF);
  TORCH_CHECK_VALUE(good, "expected UTF-8, found an invalid byte at ", at, " of ", text.size(),
                    ". Convert the text to UTF-8.");
  at += length;
  return c;
}

void append(char32_t c, std::string& text) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || c == '\t' || c == '\n' || c == '\r';
  const utf8proc_category_t found = category(c);
  return found >= UTF8PROC_CATEGORY_ZS && found <= UTF8PROC_CATEGORY_ZP;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || is_space(c);
}

bool is_letter(char32_t c) {
  const utf8proc_category_t found = category(c);
  return found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  const utf8proc_category_t found = category(c);
  return found >= UTF8PROC_CATEGORY_ND && found <= UTF8PROC_CATEGORY_NO;
}

bool is_control(char32_t c) {
  if (c < 0x80) return (c < ' ' && !is_space(c)) || c == 0x7F;
  const utf8proc_category_t found = category(c);
  return c == 0xFFFD || found == UTF8PROC_CATEGORY_CC || found == UTF8PROC_CATEGORY_CF || found == UTF8PROC_CATEGORY_CO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  const utf8proc_category_t found = category(c);
  return found >= UTF8PROC_CATEGORY_PC && found <= UTF8PROC_CATEGORY_PO;
}

bool is_ideograph(char32_t c) {
  static constexpr std::pair<char32_t, char32_t> ranges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                             {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F},
                                                             {0x2B820, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return std::ranges::any_of(ranges, [c](const auto& range) { return c >= range.first && c <= range.second; });
}

void append_folded(char32_t c, std::u32string& text) {
  if (c < 0x80) {
    text += c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
    return;
  }
  constexpr utf8proc_ssize_t most = 18;  // that one character decomposes into
  utf8proc_int32_t parts[most];
  int boundary = 0;
  const utf8proc_int32_t lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
  const utf8proc_ssize_t count = utf8proc_decompose_char(lower, parts, most, UTF8PROC_DECOMPOSE, &boundary);
  for (utf8proc_ssize_t i = 0; i < std::min(count, most); ++i) {
    const auto part = static_cast<char32_t>(parts[i]);
    if (category(part) != UTF8PROC_CATEGORY_MN) text += part;
  }
}

}  // namespace bellows::data::unicode
