#pragma once

#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// Returns `source` without the fields of these names. Use it to read the inputs of samples whose labels may be missing
/// or invalid. Samples keep their ids.
/// Throws: c10::ValueError if `source` is null
SourcePtr without_fields(SourcePtr source, std::vector<std::string> names);

}  // namespace bellows::data
