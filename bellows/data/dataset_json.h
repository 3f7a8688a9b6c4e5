#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// Maps the name of each split to its shards.
using Splits = std::map<std::string, std::vector<std::string>>;

/// Parses the text of a dataset.json and stores its values in `info`. Returns a map from the name of each split to its
/// shard pattern.
/// Params: path – path of the file, for error messages
/// Throws: c10::ValueError if the text is not JSON or a key has an invalid value; the message names the key and the
///         value
std::map<std::string, std::string> parse_dataset_json(std::string_view text, const std::string& path,
                                                      DatasetInfo& info);
/// Like parse_dataset_json(), but reads the text from a file and returns the shards instead of the patterns.
Splits read_dataset_json(const std::string& path, DatasetInfo& info);

}  // namespace bellows::data
