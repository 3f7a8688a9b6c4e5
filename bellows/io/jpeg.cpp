#include <c10/util/Exception.h>
#include <turbojpeg.h>

#include <memory>

#include "bellows/io/image_codecs.h"

namespace bellows::io {

namespace {

struct TurboClose {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using Turbo = std::unique_ptr<void, TurboClose>;

/// Setting up a decoder costs as much as decoding a small image: one a thread.
thread_local Turbo decoder;

tjhandle decompressor() {
  if (!decoder) decoder.reset(tjInitDecompress());
  TORCH_CHECK(decoder, "cannot start libjpeg-turbo: ", tjGetErrorStr2(nullptr), ".");
  return decoder.get();
}

/// The decoder's last error. A decoder that failed in a header would read the next image from the middle, so it is given up.
std::string take_error() {
  std::string reason = tjGetErrorStr2(decoder.get());
  decoder.reset();
  return reason;
}

const unsigned char* as_uchar(ByteSpan bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

bool is_four_channel(tjhandle handle, ByteSpan bytes, std::string_view where, int* width, int* height,
                     int* colorspace) {
  int subsampling = 0;
  const int result =
      tjDecompressHeader3(handle, as_uchar(bytes), bytes.size(), width, height, &subsampling, colorspace);
  TORCH_CHECK_VALUE(result == 0, where, ": JPEG header damaged or truncated (", bytes.size(), " bytes): ", take_error(),
                    ".");
  return *colorspace == TJCS_CMYK || *colorspace == TJCS_YCCK;
}

/// libjpeg goes on after errors in the data and calls them warnings. Garbage between markers is harmless, as Pillow
/// holds too; all else, a premature end above all, means wrong pixels.
void check_jpeg(tjhandle handle, int result, std::string_view where) {
  if (result == 0) return;
  const bool warning = tjGetErrorCode(handle) == TJERR_WARNING;
  const std::string reason = take_error();
  const bool harmless = warning && reason.find("extraneous bytes before marker") != std::string::npos;
  TORCH_CHECK_VALUE(harmless, where, ": JPEG data truncated or corrupt: ", reason, ".");
}

/// CMYK as Adobe stores it, inverted, by Pillow's arithmetic.
void cmyk_to_rgb(const uint8_t* in, int64_t pixels, bool gray, uint8_t* out) {
  const auto scaled = [](unsigned ink, unsigned k) {
    const unsigned product = (255 - ink) * k + 128;
    return k - ((product + (product >> 8)) >> 8);
  };
  for (int64_t i = 0; i < pixels; ++i, in += 4) {
    const unsigned r = scaled(in[0], in[3]), g = scaled(in[1], in[3]), b = scaled(in[2], in[3]);
    if (gray) {
      *out++ = luma(r, g, b);
    } else {
      *out++ = static_cast<uint8_t>(r);
      *out++ = static_cast<uint8_t>(g);
      *out++ = static_cast<uint8_t>(b);
    }
  }
}

}  // namespace

ImageInfo jpeg_info(ByteSpan bytes, std::string_view where) {
  int width = 0, height = 0, colorspace = 0;
  is_four_channel(decompressor(), bytes, where, &width, &height, &colorspace);
  check_image_size(width, height, where);
  return {ImageFormat::jpeg, width, height, colorspace == TJCS_GRAY ? 1 : 3};
}

void jpeg_decode(ByteSpan bytes, ColorMode mode, const ImageInfo& info, uint8_t* out, std::string_view where) {
  const tjhandle handle = decompressor();
  const bool gray = info.channels_as(mode) == 1;
  int width = 0, height = 0, colorspace = 0;
  const bool four = is_four_channel(handle, bytes, where, &width, &height, &colorspace);
  std::vector<uint8_t> inks(four ? static_cast<size_t>(info.width * info.height * 4) : 0);
  const int format = four ? TJPF_CMYK : gray ? TJPF_GRAY : TJPF_RGB;
  constexpr int flags = TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS;
  check_jpeg(
      handle,
      tjDecompress2(handle, as_uchar(bytes), bytes.size(), four ? inks.data() : out, width, 0, height, format, flags),
      where);
  if (four) cmyk_to_rgb(inks.data(), info.width * info.height, gray, out);
}

Bytes jpeg_encode(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels, int quality) {
  const Turbo handle(tjInitCompress());
  const int subsampling = channels == 1 ? TJSAMP_GRAY : TJSAMP_420;
  Bytes out(tjBufSize(static_cast<int>(width), static_cast<int>(height), subsampling));
  auto* start = reinterpret_cast<unsigned char*>(out.data());
  unsigned long size = out.size();  // NOLINT(google-runtime-int): turbojpeg's type
  const int result = tjCompress2(handle.get(), pixels, static_cast<int>(width), 0, static_cast<int>(height),
                                 channels == 1 ? TJPF_GRAY : TJPF_RGB, &start, &size, subsampling, quality,
                                 TJFLAG_ACCURATEDCT | TJFLAG_NOREALLOC);
  TORCH_CHECK(result == 0, "encode_jpeg: ", tjGetErrorStr2(handle.get()), ".");
  out.resize(size);
  return out;
}

}  // namespace bellows::io
