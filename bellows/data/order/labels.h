#pragma once

#include "bellows/data/source.h"

#include <string>
#include <vector>

namespace bellows::data {

/// The label of each sample: a scalar integer array "label", or the text of `cls` or `json` as in a batch.
/// Params: key – the member of a .json object that holds it
/// Cost:   reads every sample once, in the source's order; keep the result
/// Throws: c10::ValueError – a sample cannot be read, or has no integer label: which one, where it is
std::vector<int64_t> read_labels(const Source& source, const std::string& key = "label");

/// The length of each sample: the first size of the array `field`, or the bytes of the file `field`.
/// Cost:   reads every sample once, in all of libtorch's threads; keep the result
/// Throws: c10::ValueError – a sample cannot be read, or has no such field
std::vector<int64_t> read_lengths(const Source& source, const std::string& field);

}  // namespace bellows::data
