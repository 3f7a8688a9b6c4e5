#pragma once

#include <string>

#include "bellows/data/sample.h"

namespace bellows::data {

/// A number for all that a sample holds: key, fields in any order, their bytes, types and shapes.
/// Params: position – of the sample in its data set
uint64_t sample_digest(const Sample& sample, int64_t position, bool with_key);

/// Whether what was read back from a file is what was written into it, as far as its format can hold it: a picture may
/// be stored in another way (then its size is compared), a label as text or as a number, numbers in another type, an array
/// as an .npy file, JSON laid out in another way.
/// Returns: "" if so, else what differs: `field "cls" is missing`
std::string difference(const Sample& written, const Sample& read);

}  // namespace bellows::data
