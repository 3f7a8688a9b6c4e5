#pragma once

#include <string>

#include "bellows/data/convert/output_format.h"
#include "bellows/data/sample.h"

namespace bellows::data {

/// Returns a checksum of the position of a sample and of those parts of the sample that the format restores exactly.
/// For an exact format, the checksum covers the names, bytes, types and shapes of the fields, in any order. If the
/// format stores keys, the checksum also covers the key.
/// Params: position – position of the sample in its dataset
uint64_t sample_digest(const OutputFormat& format, const Sample& sample, int64_t position);

/// Compares a sample that was read back from a file with the sample that was written. These differences are allowed:
/// - a different lossless encoding of an image, or a JPEG of its pixels
/// - a label as a number instead of a text, or as a text instead of a number
/// - a different type for a number, if the value is equal
/// - an .npy file instead of an array
/// - a different layout of the same JSON
///
/// If a text became a number, printing the number must give the same text.
/// Params:  jpeg_quality – quality of images that became JPEGs; 0: images must not become JPEGs
/// Returns: "" if the samples match, otherwise the difference, such as `field "cls" is missing`
std::string difference(const Sample& written, const Sample& read, int jpeg_quality = 0);

}  // namespace bellows::data
