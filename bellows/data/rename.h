#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// `source` with other names for some fields, as the pipeline or another format wants them:
/// `rename_fields(open_mds("cifar"), {{"x", "image"}, {"y", "label"}})`.
/// Params: names – old and new; a field that is not named keeps its name
/// Throws: c10::ValueError – a name twice on one side; read() – a sample then has two fields of one name
SourcePtr rename_fields(SourcePtr source, std::vector<std::pair<std::string, std::string>> names);

}  // namespace bellows::data
