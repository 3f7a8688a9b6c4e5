#pragma once

#include "bellows/data/source.h"

#include <string>
#include <vector>

namespace bellows::data {

/// Returns the label of each sample. As for a batch, the label is read from a scalar integer array "label", or from the
/// text of `cls` or `json`.
/// Params: key – the key of the label in a .json object
/// Cost:   reads every sample once, in the order of the source; store the result
/// Throws: c10::ValueError if a sample cannot be read or has no integer label; the message names the sample and its
///         location
std::vector<int64_t> read_labels(const Source& source, const std::string& key = "label");

/// Returns the length of each sample. The length is the first size of the array `field`, or the number of bytes of the
/// file `field`.
/// Cost:   reads every sample once, in all threads of libtorch; store the result
/// Throws: c10::ValueError if a sample cannot be read or has no such field, or if the array is a scalar
std::vector<int64_t> read_lengths(const Source& source, const std::string& field);

}  // namespace bellows::data
