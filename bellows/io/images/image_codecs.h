#pragma once

// The interface between image.cpp and the two codecs. png_decode() writes rows without padding into memory of the right
// size, which the caller allocates. jpeg_decode() requests memory when the size is known.

#include <c10/util/FunctionRef.h>

#include <string>
#include <string_view>

#include "bellows/io/bytes.h"
#include "bellows/io/images/image.h"

namespace bellows::io {

/// Computes luma like Pillow.
inline uint8_t luma(unsigned r, unsigned g, unsigned b) {
  return static_cast<uint8_t>((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16);
}

ImageInfo png_info(ByteSpan bytes, std::string_view where);
void png_decode(ByteSpan bytes, ColorMode mode, const ImageInfo& info, uint8_t* out, std::string_view where);
Bytes png_encode(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels, int level);

ImageInfo jpeg_info(ByteSpan bytes, std::string_view where);
ImagePart jpeg_decode(ByteSpan bytes, const PartOptions& options, c10::function_ref<uint8_t*(size_t)> memory,
                      std::string_view where);
Bytes jpeg_encode(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels, int quality);

/// Throws: c10::ValueError if the image is empty or larger than kMaxImagePixels
void check_image_size(int64_t width, int64_t height, std::string_view where);
/// Throws: c10::ValueError if the region is not part of an image of width × height, or if the shrink factor is not
///         supported
void check_part(const PartOptions& options, int64_t width, int64_t height, std::string_view where);

}  // namespace bellows::io
