#pragma once

#include <string>
#include <string_view>

/// Unicode text and the properties of its characters (libutf8proc).
namespace bellows::data::unicode {

/// Returns the character at `at` and advances `at` to the next one.
/// Throws: c10::ValueError if the text is not UTF-8 (the message names the byte)
char32_t next(std::string_view text, size_t& at);
void append(char32_t character, std::string& text);

bool is_space(char32_t character);
/// Unicode's White_Space: \s in regular expressions.
bool is_white_space(char32_t character);
/// Unicode's letters (\p{L}) and numbers (\p{N}).
bool is_letter(char32_t character);
bool is_number(char32_t character);
/// Control and format characters, private use, and the replacement character.
bool is_control(char32_t character);
/// Unicode's punctuation, and all ASCII characters that are not a letter, digit, space or control character.
bool is_punctuation(char32_t character);
/// True for an ideograph, which is a word by itself.
bool is_ideograph(char32_t character);
/// Appends the character in lower case and without accents: str.lower(), NFD, and no nonspacing marks.
void append_folded(char32_t character, std::u32string& text);

}  // namespace bellows::data::unicode
