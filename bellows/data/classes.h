#pragma once

#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// Returns true if the labels are class names instead of numbers. Class names are texts in a table's "label" column, or
/// texts in a `cls` or `json` field. The function reads the first 100 samples. If they contain both kinds of labels,
/// the more frequent kind decides, and samples with the other kind are bad samples.
bool has_named_labels(const Source& source);

/// Returns the classes of a labeled source. If labels are names, the classes are the names in alphabetical order.
/// Otherwise, the classes are the numbers from 0 to the largest label or to 1,000,000, whichever is smaller. Bad
/// samples are ignored.
/// Cost: reads every sample once, and the first 100 samples twice
std::vector<std::string> class_names(const Source& source);

/// Returns `source` with each class name replaced by its index in `classes`. The index is stored in the field "label",
/// a scalar int64 array.
/// Throws: c10::ValueError if `source` is null. read() throws c10::ValueError if a label is missing (null or an empty
///         text), is a number or is not in `classes`; the message names the sample and its location
SourcePtr number_labels(SourcePtr source, std::vector<std::string> classes);

}  // namespace bellows::data
