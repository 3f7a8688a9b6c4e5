#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// The candidate that is closest to `name` by edit distance, or "" when none is close enough to be a likely slip.
std::string nearest_match(std::string_view name, const std::vector<std::string>& candidates);

/// ` Did you mean "x"?` for use at the end of an error message, or "" when nothing is close.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// The text of an exception for a person: no backtrace, no C++ source position; errors of libtorch that
/// users meet begin with what they mean and what to do.
std::string user_message(const std::exception& error);

/// `errno` in words with its number: "No space left on device (28)".
std::string errno_message(int error_number);

}  // namespace bellows
