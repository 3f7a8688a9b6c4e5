#pragma once

#include <string>

#include "bellows/data/convert/output_format.h"
#include "bellows/data/sample.h"

namespace bellows::data {

/// A checksum of the parts of a sample that the format restores exactly. For an exact format, these are the key and the
/// fields in any order, with their bytes, types and shapes. For other formats, it is the key, if the format keeps keys.
/// Params: position – of the sample in its dataset
uint64_t sample_digest(const OutputFormat& format, const Sample& sample, int64_t position);

/// Compares a sample that was read back from a file with the sample that was written, as far as the format can
/// represent it. Allowed differences: another lossless image encoding, or a JPEG of the pixels; a label as text or as a
/// number; numbers of another type; an array as an .npy file; another layout of JSON. If a text became a number, the
/// number must print as that text.
/// Params:  jpeg_quality – of images that became JPEGs; 0: none may become JPEG
/// Returns: "" if they match, else the difference: `field "cls" is missing`
std::string difference(const Sample& written, const Sample& read, int jpeg_quality = 0);

}  // namespace bellows::data
