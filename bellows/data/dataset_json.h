#pragma once

#include <map>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// Shards by split.
using Splits = std::map<std::string, std::vector<std::string>>;

/// Fills `info` from a dataset.json and returns the splits it names.
/// Throws: c10::ValueError – no JSON, or not what is expected: key, what was found
Splits read_dataset_json(const std::string& path, DatasetInfo& info);

}  // namespace bellows::data
