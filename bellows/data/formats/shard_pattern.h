#pragma once

#include <string>
#include <vector>

namespace bellows::data {

/// Shards that a pattern names: brace ranges `{000..015}` and lists `{a,b}`, several patterns joined by `::`, globs
/// (sorted). URLs know ranges, lists and `::`, but no globs. A file or a folder that exists under exactly the name given
/// is taken literally, whatever is in its name.
/// Params:   folder – where relative patterns start, taken literally; "": the current one
/// Throws:   c10::ValueError – a glob that matches nothing, an unbalanced brace or an impossible range
std::vector<std::string> expand_shards(const std::string& pattern, const std::string& folder = "");

}  // namespace bellows::data
