#pragma once

#include <string>
#include <vector>

namespace bellows::cli {

/// Parses levels of load: a list with commas, whose elements are numbers, "A:B" for A, 2A, 4A, … and B, or "A:B:STEP".
/// Params: option – for error messages
///         whole  – accept only integers
/// Throws: UsageError if the text is malformed, or if a level is not above 0
std::vector<double> parse_levels(const std::string& text, const std::string& option, bool whole);

}  // namespace bellows::cli
