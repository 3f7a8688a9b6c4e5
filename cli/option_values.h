#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// Parts of the values of options. `option` and `expected` are for error messages.
namespace bellows::cli {

/// Returns the parts of `text` between the separators.
std::vector<std::string> split_at(const std::string& text, char separator);
/// Returns the elements of a list with commas that are not empty.
std::vector<std::string> split_list(const std::string& text);

/// Splits "name=value" at the last equals sign.
/// Throws: UsageError if a part is missing
std::pair<std::string, std::string> named_value(const std::string& text, const std::string& option,
                                                const std::string& expected);
/// Returns the integer that `text` states.
/// Throws: UsageError if the text is not an integer of at least `low`
int64_t integer_value(const std::string& text, int64_t low, const std::string& option);

}  // namespace bellows::cli
