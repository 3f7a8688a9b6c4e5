#pragma once

#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// Returns true if the labels are class names instead of numbers. Class names are texts in a table's "label" column, or
/// texts in a `cls` or `json` field. The majority of the first 100 samples decides. A sample with the other kind of
/// label is a bad sample.
bool has_named_labels(const Source& source);

/// Returns the classes of a labeled source. If labels are names, the classes are the names in alphabetical order.
/// Otherwise, they are the numbers from 0 to the largest label, but at most to 1,000,000. Bad samples are ignored.
/// Cost: reads every sample once, and the first 100 samples twice
std::vector<std::string> class_names(const Source& source);

/// Returns `source` with each label name replaced by its index in `classes`. The index is a scalar int64 array "label".
/// Throws: c10::ValueError if `source` is null. read() throws c10::ValueError if a label is missing (null or an empty
///         text), is a number or is not in `classes`; the message names the sample and its location
SourcePtr number_labels(SourcePtr source, std::vector<std::string> classes);

}  // namespace bellows::data
