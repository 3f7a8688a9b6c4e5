#pragma once

#include <string_view>

#include "bellows/io/bytes.h"

namespace bellows::data {

/// The name that the pipeline knows such a file by, "jpg" or "png"; `other` when it is neither.
inline std::string_view picture_name(io::ByteSpan file, std::string_view other) {
  const std::string_view text = io::as_text(file);
  return text.starts_with("\xff\xd8\xff") ? "jpg" : text.starts_with("\x89PNG\r\n") ? "png" : other;
}

}  // namespace bellows::data
