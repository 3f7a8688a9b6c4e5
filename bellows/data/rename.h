#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// Returns `source` with renamed fields. Use it if the pipeline or a format expects different names:
/// `rename_fields(open_mds("cifar"), {{"x", "image"}, {"y", "label"}})`.
/// Params: names – pairs of an old and a new name; all other fields keep their names
/// Throws: c10::ValueError if an old name or a new name occurs twice. read() throws c10::ValueError if a sample would
///         have two fields of the same name
SourcePtr rename_fields(SourcePtr source, std::vector<std::pair<std::string, std::string>> names);

}  // namespace bellows::data
