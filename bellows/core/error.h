#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// Returns the candidate with the smallest edit distance to `name`. Returns "" if no candidate is close enough to
/// suggest a typo.
std::string nearest_match(std::string_view name, const std::vector<std::string>& candidates);

/// Returns a suggestion such as ` Did you mean "x"?` for an error message, or "" if no candidate is close.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// Returns the message of an exception without the backtrace and the C++ source location. For common libtorch errors,
/// the message starts with an explanation and advice.
std::string user_message(const std::exception& error);

/// Describes an `errno` value with its number, such as "No space left on device (28)".
std::string errno_message(int error_number);

}  // namespace bellows
