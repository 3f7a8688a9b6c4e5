#pragma once

#include <string>

#include "bellows/data/convert/output_format.h"
#include "bellows/data/sample.h"

namespace bellows::data {

/// A number for all of a sample that comes back from the format as it was: of an exact one key, fields in any order, their
/// bytes, types and shapes; of others the key, if it is kept.
/// Params: position – of the sample in its data set
uint64_t sample_digest(const OutputFormat& format, const Sample& sample, int64_t position);

/// Whether what was read back from a file is what was written into it, as far as its format can hold it: a picture may
/// be stored without loss in another way, or as the JPEG that its pixels make, a label as text or as a number, numbers in
/// another type, an array as an .npy file, JSON laid out in another way. A text that became a number has to be what the number
/// prints as.
/// Params: jpeg_quality – of pictures that became JPEGs; 0: none may
/// Returns: "" if so, else what differs: `field "cls" is missing`
std::string difference(const Sample& written, const Sample& read, int jpeg_quality = 0);

}  // namespace bellows::data
