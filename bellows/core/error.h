#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// Returns the candidate with the smallest edit distance to `name`, or "" if none is close enough to be a likely typo.
std::string nearest_match(std::string_view name, const std::vector<std::string>& candidates);

/// Returns ` Did you mean "x"?` to append to an error message, or "" if no candidate is close.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// Returns the message of an exception without backtrace and C++ source position. Common libtorch errors start with an
/// explanation and advice.
std::string user_message(const std::exception& error);

/// Describes `errno` in words, with its number: "No space left on device (28)".
std::string errno_message(int error_number);

}  // namespace bellows
