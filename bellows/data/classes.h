#pragma once

#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// True if the labels are names: texts in a table's "label" column, or a `cls` or `json` field that holds a text and no
/// number. The majority among the first 100 samples decides for all samples; a sample of the other kind is a bad
/// sample.
bool has_named_labels(const Source& source);

/// The classes of a labeled source: the names in alphabetical order if labels are names, else the numbers from 0 to the
/// largest label (at most 1,000,000). Bad samples are ignored.
/// Cost: reads every sample once
std::vector<std::string> class_names(const Source& source);

/// `source` with named labels replaced by numbers: a scalar int64 array "label" that holds the index of the name in
/// `classes`.
/// Throws: c10::ValueError if `source` is null. read() throws c10::ValueError if a label is missing (null, an empty
///         text), is a number or is not in `classes`; the message names the sample and its location
SourcePtr number_labels(SourcePtr source, std::vector<std::string> classes);

}  // namespace bellows::data
