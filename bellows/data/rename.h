#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// `source` with some fields renamed to the names that the pipeline or another format expects:
/// `rename_fields(open_mds("cifar"), {{"x", "image"}, {"y", "label"}})`.
/// Params: names – old and new name; other fields keep their names
/// Throws: c10::ValueError if an old or a new name occurs twice. read() throws c10::ValueError if a sample would have
///         two fields of the same name
SourcePtr rename_fields(SourcePtr source, std::vector<std::pair<std::string, std::string>> names);

}  // namespace bellows::data
