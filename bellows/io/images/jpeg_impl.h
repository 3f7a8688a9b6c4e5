#pragma once

// libjpeg as the decoder and the coder share it.

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <jpeglib.h>  // wants FILE

#include "bellows/io/bytes.h"
#include "bellows/io/images/image.h"

namespace bellows::io {

/// libjpeg's errors end in a longjmp to guard().
struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg hands out a pointer to it
  std::jmp_buf stop;
  char message[JMSG_LENGTH_MAX];

  jpeg_error_mgr* init();
  /// Runs `body`, whose frames hold nothing that needs a destructor. False: it failed, and `message` says why.
  template <class F>
  bool guard(const F& body) {
    if (setjmp(stop) != 0) return false;  // NOLINT(cert-err52-cpp): the library is in C
    body();
    return true;
  }
};

/// What jpeg_mem_dest allocates.
struct JpegMemory {
  JpegMemory() = default;
  ~JpegMemory() { std::free(data); }
  JpegMemory(const JpegMemory&) = delete;
  JpegMemory& operator=(const JpegMemory&) = delete;
  ByteSpan bytes() const { return {reinterpret_cast<const std::byte*>(data), size}; }

  unsigned char* data = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
};

/// libjpeg's decoder.
struct JpegReader {
  JpegReader();
  ~JpegReader() { jpeg_destroy_decompress(&info); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Reads the header of `bytes`; the decoder is then ready to start. False: errors.message says why not.
  bool open(ByteSpan bytes);

  JpegErrors errors;
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct info{};
  bool ready = false;
  Bytes tiles;  ///< for cut_jpeg
};

/// Whether it is made of inks instead of lights: CMYK.
bool has_inks(const jpeg_decompress_struct& info);
/// Each block of 8 × 8 values takes at least a bit (an arithmetic coder needs less): a header that promises more is
/// refused before anything is allocated for its blocks.
/// Throws: c10::ValueError – it promises more
void check_jpeg_promise(const jpeg_decompress_struct& info, ByteSpan bytes, std::string_view where);

/// Puts the restart intervals of `bytes` that `part` needs together as a JPEG of their own. Its pixels are bit for bit
/// those of the whole image there and one block beside it, as far as smooth upsampling looks.
/// Params:  info – the header of `bytes` has been read, nothing else
///          out  – grows as needed and is never shrunk
/// Returns: what `out` covers of the image; nothing where there are no such intervals or they are not in order
std::optional<ImageRegion> cut_jpeg(jpeg_decompress_struct& info, ByteSpan bytes, const ImageRegion& part, Bytes& out);

}  // namespace bellows::io
