#pragma once

#include <string_view>

#include "bellows/data/sample.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

/// True for an encoded image (a file png, jpg, jpeg or image) and for pixels (a uint8 array "image" [H, W, C]).
bool is_picture(const Field& field);

/// Returns the sample's first image; null if it has none.
const Field* find_picture(const Sample& sample);

/// Returns the field name of an encoded image, "jpg" or "png"; `other` if it is neither.
inline std::string_view picture_name(io::ByteSpan file, std::string_view other) {
  const std::string_view text = io::as_text(file);
  return text.starts_with("\xff\xd8\xff") ? "jpg" : text.starts_with("\x89PNG\r\n") ? "png" : other;
}

}  // namespace bellows::data
