#pragma once

#include <span>
#include <string>
#include <string_view>

/// What tokenizers know of characters.
namespace bellows::data::unicode {

struct Range {
  char32_t first, last;
};
struct Folding {
  char32_t from, to[3];  ///< ends with the first 0
};
/// Of characters from U+0080 on, ascending.
struct Tables {
  std::string_view pairs;  ///< a character, and what takes its place, as UTF-8
  std::span<const Folding> foldings;
  std::span<const Range> removed, punctuation, control, space, letter, number;
};
/// Made from Python's unicodedata.
const Tables& tables();

/// The character at `at`, which moves behind it.
/// Throws: c10::ValueError – this is no UTF-8: at which byte
char32_t next(std::string_view text, size_t& at);
void append(char32_t character, std::string& text);

bool is_space(char32_t character);
/// Unicode's White_Space: what regular expressions call \s.
bool is_white_space(char32_t character);
/// Unicode's letters (\p{L}) and numbers (\p{N}).
bool is_letter(char32_t character);
bool is_number(char32_t character);
/// Control and format characters, private use, the sign for what could not be read.
bool is_control(char32_t character);
/// Unicode's punctuation, and all of ASCII that is no letter, digit, space or control character.
bool is_punctuation(char32_t character);
/// An ideograph: a word by itself.
bool is_ideograph(char32_t character);
/// In lower case and without accents: str.lower(), NFD, and no nonspacing marks.
void append_folded(char32_t character, std::u32string& text);

}  // namespace bellows::data::unicode
