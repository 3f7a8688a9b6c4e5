#pragma once

#include <string>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// Labels are names: texts "label" of a table, or a `cls` or `json` that holds a text and no number. The first hundred samples say
/// so for all, by most of their labels: what is otherwise is a bad sample.
bool has_named_labels(const Source& source);

/// The classes of samples with labels: names in alphabetical order where labels are names, else the numbers up to the largest.
/// Bad samples do not count.
/// Cost: reads every sample once
std::vector<std::string> class_names(const Source& source);

/// `source` with numbers in the place of labels that are names: a scalar int64 array "label", the name's place in `classes`.
/// Throws: c10::ValueError – null; read(): a label that is missing (null, an empty text), a number, or no class: which
///         sample, where
SourcePtr number_labels(SourcePtr source, std::vector<std::string> classes);

}  // namespace bellows::data
