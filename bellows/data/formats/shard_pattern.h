#pragma once

#include <string>
#include <vector>

namespace bellows::data {

/// Expands a pattern of shards: brace ranges `{000..015}` and lists `{a,b}`, several patterns joined by `::`, and globs
/// (sorted). URLs support ranges, lists and `::`, but no globs. If a file or a folder with exactly the given name
/// exists, the name is taken literally.
/// Params: folder – base of relative patterns, taken literally; "": the current folder
/// Throws: c10::ValueError if a glob matches nothing, a brace is unbalanced or a range is invalid
std::vector<std::string> expand_shards(const std::string& pattern, const std::string& folder = "");

}  // namespace bellows::data
