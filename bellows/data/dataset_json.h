#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// The shards of each split, by the split's name.
using Splits = std::map<std::string, std::vector<std::string>>;

/// Fills `info` from the text of a dataset.json. Returns the pattern of shards of each split that it names.
/// Params: path – of the file, for error messages
/// Throws: c10::ValueError if the text is not JSON or a key has an unexpected value (the message names the key and what
///         was found)
std::map<std::string, std::string> parse_dataset_json(std::string_view text, const std::string& path,
                                                      DatasetInfo& info);
/// Like parse_dataset_json(), but reads the text from a file and returns the shards.
Splits read_dataset_json(const std::string& path, DatasetInfo& info);

}  // namespace bellows::data
