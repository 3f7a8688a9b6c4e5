#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// Shards by split.
using Splits = std::map<std::string, std::vector<std::string>>;

/// Fills `info` from the text of a dataset.json and returns the splits it names, each with its pattern of shards.
/// Params: path – of the file, for messages
/// Throws: c10::ValueError – no JSON, or not what is expected: key, what was found
std::map<std::string, std::string> parse_dataset_json(std::string_view text, const std::string& path,
                                                      DatasetInfo& info);
/// The same of a file, with the shards.
Splits read_dataset_json(const std::string& path, DatasetInfo& info);

}  // namespace bellows::data
