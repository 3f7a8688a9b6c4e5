#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/convert/convert.h"
#include "bellows/data/convert/convert_state.h"

namespace bellows::data {

/// Reads all files back and verifies them. Returns the number of samples that were compared with the source, or nothing
/// if the conversion was stopped.
/// Throws: see convert()
std::optional<int64_t> verify_shards(const Source& source, const OutputFormat& format,
                                     const std::vector<std::string>& files, const ConvertOptions& options,
                                     int64_t threads, const std::vector<FinishedShard>& shards);

}  // namespace bellows::data
