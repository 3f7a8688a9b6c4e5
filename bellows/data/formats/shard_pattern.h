#pragma once

#include <string>
#include <vector>

namespace bellows::data {

/// Expands a pattern to the names of shards. A pattern may contain:
/// - ranges `{000..015}` and lists `{a,b}`
/// - several patterns joined by `::`
/// - globs, except in URLs; the matches of a glob are sorted
///
/// If a file or a folder with exactly the given name exists, the name is not expanded.
/// Params: folder – base folder of relative patterns, which is not expanded; "": the current folder
/// Throws: c10::ValueError if a glob matches nothing, if a brace is not closed, if a range is invalid, or if the
///         pattern names more than 10 million shards
std::vector<std::string> expand_shards(const std::string& pattern, const std::string& folder = "");

}  // namespace bellows::data
