#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "bellows/data/text/unicode.h"

namespace bellows::data::unicode {

namespace {

constexpr char32_t last_character = 0x10FFFF;

bool is_in(std::span<const Range> ranges, char32_t c) {
  const auto behind = std::ranges::upper_bound(ranges, c, {}, &Range::first);
  return behind != ranges.begin() && c <= std::prev(behind)->last;
}

const std::vector<std::pair<char32_t, char32_t>>& folded_pairs() {
  static const auto all = [] {
    std::vector<std::pair<char32_t, char32_t>> pairs;
    const std::string_view text = tables().pairs;
    pairs.reserve(text.size() / 4);
    for (size_t at = 0; at < text.size();) {
      const char32_t from = next(text, at);
      pairs.emplace_back(from, next(text, at));
    }
    return pairs;
  }();
  return all;
}

/// Syllables are consonant, vowel and, for most, another consonant.
void append_hangul(char32_t syllable, std::u32string& text) {
  constexpr char32_t vowels = 21, ends = 28;
  text.push_back(U'\u1100' + syllable / (vowels * ends));
  text.push_back(U'\u1161' + syllable / ends % vowels);
  if (syllable % ends > 0) text.push_back(U'\u11A7' + syllable % ends);
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
  TORCH_CHECK_VALUE(good, "expected UTF-8, found another byte at ", at, " of ", text.size(), ". Convert the text.");
  at += length;
  return c;
}

void append(char32_t c, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || c == '\t' || c == '\n' || c == '\r';
  return is_in(tables().space, c);
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || is_in(tables().space, c);
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_in(tables().letter, c);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_in(tables().number, c);
}

bool is_control(char32_t c) {
  if (c < 0x80) return (c < ' ' && !is_space(c)) || c == 0x7F;
  return c == 0xFFFD || is_in(tables().control, c);
}

bool is_punctuation(char32_t c) {
  if (c >= 0x80) return is_in(tables().punctuation, c);
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

bool is_ideograph(char32_t c) {
  static constexpr Range ranges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                     {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return is_in(ranges, c);
}

void append_folded(char32_t c, std::u32string& text) {
  if (c < 0x80) {
    text += c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
    return;
  }
  if (c >= 0xAC00 && c <= 0xD7A3) return append_hangul(c - 0xAC00, text);
  const auto& pairs = folded_pairs();
  const auto pair = std::ranges::lower_bound(pairs, c, {}, &std::pair<char32_t, char32_t>::first);
  if (pair != pairs.end() && pair->first == c) {
    text += pair->second;
    return;
  }
  const auto folding = std::ranges::lower_bound(tables().foldings, c, {}, &Folding::from);
  if (folding != tables().foldings.end() && folding->from == c) {
    for (const char32_t to : folding->to) {
      if (to != 0) text += to;
    }
  } else if (!is_in(tables().removed, c)) {
    text += c;
  }
}

}  // namespace bellows::data::unicode
