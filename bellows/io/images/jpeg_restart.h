#pragma once

#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Codes a JPEG anew with restart markers in each row of blocks, so that decode_image_part jumps to what it needs
/// instead of reading everything before it.
/// Numerics: the coefficients stay as they are: all decoders give the same pixels. A progressive JPEG becomes a
///           sequential one, which decodes faster. EXIF, ICC and other markers are kept.
/// Returns:  `jpeg` itself where it has such markers already, and where they would not help: CMYK, arithmetic coding,
///           progressive JPEGs that leave out bits
/// Cost:     decodes and encodes the entropy code; sizes change by a few per cent
/// Threads:  safe from all threads
/// Throws:   c10::ValueError – no JPEG, truncated, corrupt; the text starts with `where`
Bytes jpeg_with_restarts(ByteSpan jpeg, std::string_view where = "image");

}  // namespace bellows::io
