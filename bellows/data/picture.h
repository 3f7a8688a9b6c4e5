#pragma once

#include <string_view>

#include "bellows/data/sample.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// Returns true for an encoded image (a field "png", "jpg", "jpeg" or "image" that is not an array) and for pixels (a
/// uint8 array "image" [H, W, C]).
bool is_picture(const Field& field);

/// Returns the first image of the sample, or null if the sample has no image.
const Field* find_picture(const Sample& sample);

/// Returns the field name for an encoded image: "jpg" for a JPEG, "png" for a PNG, otherwise `other`.
inline std::string_view picture_name(io::ByteSpan file, std::string_view other) {
  const std::string_view text = io::as_text(file);
  return text.starts_with("\xff\xd8\xff") ? "jpg" : text.starts_with("\x89PNG\r\n") ? "png" : other;
}

}  // namespace bellows::data
