#pragma once

#include <string>
#include <string_view>

/// Unicode text and the properties of its characters (libutf8proc).
namespace bellows::data::unicode {

/// Returns the character at `at` and advances `at` to the next character.
/// Throws: c10::ValueError if the text is not UTF-8 (the message names the byte offset)
char32_t next(std::string_view text, size_t& at);
void append(char32_t character, std::string& text);

bool is_space(char32_t character);
/// Returns true for characters with Unicode's property White_Space (\s in regular expressions).
bool is_white_space(char32_t character);
/// Returns true for Unicode's letters (\p{L}).
bool is_letter(char32_t character);
/// Returns true for Unicode's numbers (\p{N}).
bool is_number(char32_t character);
/// Returns true for control and format characters, for private-use characters and for the replacement character.
bool is_control(char32_t character);
/// Returns true for Unicode's punctuation, and for all ASCII characters that are not a letter, a digit, a space or a
/// control character.
bool is_punctuation(char32_t character);
/// Returns true for an ideograph. BERT's tokenizer treats each ideograph as a separate word.
bool is_ideograph(char32_t character);
/// Appends the character in lower case and without accents. The result equals Python's str.lower(), followed by NFD
/// normalization and the removal of nonspacing marks.
void append_folded(char32_t character, std::u32string& text);

}  // namespace bellows::data::unicode
