#pragma once

#include "bellows/data/source.h"

#include <string>
#include <string_view>
#include <vector>

namespace bellows::data {

/// WebDataset shards (tar files of `key.suffix` members) with random access.
///
/// Opening scans the tar headers only. A sample is a run of members with one key: the path up to the first dot of its
/// base name; the suffix is lower-cased. Skipped: what is no regular file, has no suffix, is hidden (`.x`), or whose
/// path begins with a name of the form `__…__`.
/// Params:   shards – paths of tar files, in order
/// Cost:     maps all shards; about 100 bytes a sample and its two members for the index; reading copies nothing and
///           asks the system once for the size of the shard
/// Throws:   c10::ValueError – no shards, a shard missing or corrupt (path and byte offset), a suffix twice in one
///           sample; read() – the sample's shard was cut short since it was opened
/// Ref:      webdataset/tariterators.py
SourcePtr open_webdataset(const std::vector<std::string>& shards);

/// Splits a member's name as WebDataset does. False when it takes no part in a sample.
bool split_member_name(std::string_view name, std::string_view& key, std::string_view& suffix);

/// Shards that a pattern names: brace ranges `{000..015}` and lists `{a,b}`, several patterns joined by `::`, globs
/// (sorted). A file or a folder that exists under exactly the name given is taken literally, whatever is in its name.
/// Params:   folder – where relative patterns start, taken literally; "": the current one
/// Throws:   c10::ValueError – a glob that matches nothing, an unbalanced brace or an impossible range
std::vector<std::string> expand_shards(const std::string& pattern, const std::string& folder = "");

}  // namespace bellows::data
