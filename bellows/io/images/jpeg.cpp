#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>

#include "bellows/io/images/image_codecs.h"
#include "bellows/io/images/jpeg_impl.h"

#include <jerror.h>  // wants jpeglib.h

namespace bellows::io {

namespace {

JpegErrors* errors_of(j_common_ptr common) {
  return reinterpret_cast<JpegErrors*>(common->err);
}

[[noreturn]] void fail_jpeg(j_common_ptr common) {
  JpegErrors* errors = errors_of(common);
  errors->manager.format_message(common, errors->message);
  std::longjmp(errors->stop, 1);  // NOLINT(cert-err52-cpp)
}

/// libjpeg goes on after errors in the data and calls them warnings. Garbage between markers is harmless, as Pillow
/// holds too; all else, a premature end above all, means wrong pixels.
void take_jpeg_message(j_common_ptr common, int level) {
  if (level < 0 && common->err->msg_code != JWRN_EXTRANEOUS_DATA) fail_jpeg(common);
}

/// Each scan costs a pass over the whole image; no camera or tool writes as many.
constexpr int kMaxScans = 500;

void count_scans(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
  std::snprintf(errors_of(common)->message, JMSG_LENGTH_MAX, "more than %d scans", kMaxScans);
  std::longjmp(errors_of(common)->stop, 1);  // NOLINT(cert-err52-cpp)
}

}  // namespace

jpeg_error_mgr* JpegErrors::init() {
  jpeg_std_error(&manager);
  manager.error_exit = fail_jpeg;
  manager.emit_message = take_jpeg_message;
  return &manager;
}

JpegReader::JpegReader() {
  info.err = errors.init();
  ready = errors.guard([&] { jpeg_create_decompress(&info); });
  progress.progress_monitor = count_scans;
  info.progress = &progress;
}

bool JpegReader::open(ByteSpan bytes) {
  return errors.guard([&] {
    jpeg_abort_decompress(&info);
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info, TRUE);
  });
}

bool has_inks(const jpeg_decompress_struct& info) {
  return info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
}

void check_jpeg_promise(const jpeg_decompress_struct& info, ByteSpan bytes, std::string_view where) {
  uint64_t blocks = 0;
  for (int i = 0; i < info.num_components; ++i)
    blocks += uint64_t{info.comp_info[i].width_in_blocks} * info.comp_info[i].height_in_blocks;
  TORCH_CHECK_VALUE(info.arith_code || blocks <= 8 * uint64_t{bytes.size()}, where,
                    ": JPEG data truncated or corrupt: ", info.image_width, " × ", info.image_height,
                    " pixels cannot come from ", bytes.size(), " bytes.");
}

namespace {

/// Setting one up costs as much as decoding a small image, so there is one a thread; after an error it is given up,
/// since it may be left in the middle of things.
thread_local std::unique_ptr<JpegReader> jpeg_reader;

std::string take_jpeg_error() {
  std::string reason = jpeg_reader->errors.message;
  jpeg_reader.reset();
  return reason;
}

template <class F>
void check_jpeg(std::string_view where, const F& body) {
  TORCH_CHECK_VALUE(jpeg_reader->errors.guard(body), where, ": JPEG data truncated or corrupt: ", take_jpeg_error(),
                    ".");
}

/// Reads the header of `bytes`; the decoder is then ready to start.
jpeg_decompress_struct& open_jpeg(ByteSpan bytes, std::string_view where) {
  if (!jpeg_reader) jpeg_reader = std::make_unique<JpegReader>();
  TORCH_CHECK(jpeg_reader->ready, "cannot start libjpeg: ", take_jpeg_error(), ".");
  jpeg_decompress_struct& info = jpeg_reader->info;
  const bool good = jpeg_reader->open(bytes);
  TORCH_CHECK_VALUE(good, where, ": JPEG header damaged or truncated (", bytes.size(), " bytes): ", take_jpeg_error(),
                    ".");
  check_image_size(info.image_width, info.image_height, where);
  return info;
}

/// CMYK as Adobe stores it, inverted, by Pillow's arithmetic; `out` may be `in`.
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

/// `part` of the image in pixels of the image shrunk to 1 / `shrink`, rounded outwards.
ImageRegion shrunk(const ImageRegion& part, int64_t shrink) {
  const int64_t y = part.y / shrink, x = part.x / shrink;
  return {y, x, (part.y + part.height + shrink - 1) / shrink - y, (part.x + part.width + shrink - 1) / shrink - x};
}

/// Only an image whose blocks are coded in one pass, one after the other, can be left early. Columns of others are not
/// cut either: smoothing between blocks looks at neighbours.
bool can_be_cut(jpeg_decompress_struct& info) {
  return !jpeg_has_multiple_scans(&info) && !has_inks(info);
}

/// Starts the decoder. Its rows then begin at column `left`, so far before the part that smooth upsampling finds what
/// it looks at.
void start_jpeg(jpeg_decompress_struct& info, const PartOptions& options, const ImageRegion& part, bool gray,
                JDIMENSION& left, std::string_view where) {
  info.out_color_space = has_inks(info) ? JCS_CMYK : gray ? JCS_GRAYSCALE : JCS_RGB;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(options.shrink);
  info.dct_method = options.fast ? JDCT_IFAST : JDCT_ISLOW;
  // At full size libjpeg-turbo 2.1's other way takes pixels from memory that it never wrote where rows and columns are left
  // out. At smaller ones colour at half resolution in both directions is not upsampled at all.
  info.do_fancy_upsampling = options.fast && options.shrink > 1 ? FALSE : TRUE;
  check_jpeg(where, [&] {
    jpeg_start_decompress(&info);
    if (!can_be_cut(info) || part.width >= info.output_width) return;
    constexpr JDIMENSION margin = 2;  // one value of a channel at half resolution
    const auto first = static_cast<JDIMENSION>(part.x), last = first + static_cast<JDIMENSION>(part.width);
    left = first - std::min(first, margin);
    JDIMENSION width = std::min(last + margin, info.output_width) - left;
    jpeg_crop_scanline(&info, &left, &width);
  });
}

/// Reads rows [begin, end), one every `stride` bytes.
void read_jpeg_rows(jpeg_decompress_struct& info, int64_t begin, int64_t end, uint8_t* out, int64_t stride,
                    std::string_view where) {
  check_jpeg(where, [&] {
    if (begin > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(begin));
    constexpr int64_t at_once = 16;
    for (int64_t y = begin; y < end; y = info.output_scanline) {
      JSAMPROW rows[at_once];
      const int64_t count = std::min(end - y, at_once);
      for (int64_t i = 0; i < count; ++i) rows[i] = out + (y - begin + i) * stride;
      jpeg_read_scanlines(&info, rows, static_cast<JDIMENSION>(count));
    }
  });
}

/// Ends an image that is left early. A file that was cut off has no end marker; within coded data its bytes cannot
/// occur.
void leave_jpeg(jpeg_decompress_struct& info, ByteSpan bytes, std::string_view where) {
  constexpr size_t read_ahead = 16;  // bytes that the decoder may have taken without using them
  const size_t at = bytes.size() - info.src->bytes_in_buffer;
  const std::string_view rest = as_text(bytes.subspan(at - std::min(at, read_ahead)));
  TORCH_CHECK_VALUE(rest.rfind("\xff\xd9") != std::string_view::npos, where,
                    ": JPEG data truncated or corrupt: no end marker in ", bytes.size(), " bytes.");
  jpeg_abort_decompress(&info);
}

/// Decodes a part of the image that is open.
ImagePart decode_open_jpeg(jpeg_decompress_struct& info, ByteSpan bytes, const PartOptions& options,
                           c10::function_ref<uint8_t*(size_t)> memory, std::string_view where) {
  const bool inks = has_inks(info), cut = can_be_cut(info);
  const bool gray =
      options.mode == ColorMode::gray || (options.mode == ColorMode::keep && info.jpeg_color_space == JCS_GRAYSCALE);
  const ImageRegion part = shrunk(options.region, options.shrink);
  JDIMENSION left = 0;
  start_jpeg(info, options, part, gray, left, where);
  const int64_t first = cut ? part.y : 0, last = cut ? part.y + part.height : info.output_height;
  const int64_t width = info.output_width, depth = info.output_components, channels = gray ? 1 : 3;
  uint8_t* const pixels = memory(static_cast<size_t>((last - first) * width * depth));
  read_jpeg_rows(info, first, last, pixels, width * depth, where);
  if (last < int64_t{info.output_height}) {
    leave_jpeg(info, bytes, where);
  } else {
    check_jpeg(where, [&] { jpeg_finish_decompress(&info); });
  }
  if (inks) cmyk_to_rgb(pixels, (last - first) * width, gray, pixels);
  const int64_t stride = width * channels;
  return {pixels + (part.y - first) * stride + (part.x - left) * channels, stride, channels, part};
}

/// Jumps from restart marker to restart marker. Nothing: there are none, or something is wrong, which the way through
/// all of the data tells best.
std::optional<ImagePart> decode_jpeg_tiles(jpeg_decompress_struct& info, ByteSpan bytes, PartOptions options,
                                           c10::function_ref<uint8_t*(size_t)> memory, std::string_view where) {
  Bytes& cut = jpeg_reader->tiles;
  const std::optional<ImageRegion> tiles = cut_jpeg(info, bytes, options.region, cut);
  if (!tiles) return std::nullopt;
  options.region.y -= tiles->y;
  options.region.x -= tiles->x;
  try {
    open_jpeg(cut, where);
    if (info.image_height != tiles->height || info.image_width != tiles->width) return std::nullopt;
    ImagePart part = decode_open_jpeg(info, cut, options, memory, where);
    part.region.y += tiles->y / options.shrink;
    part.region.x += tiles->x / options.shrink;
    return part;
  } catch (const c10::ValueError&) {
    return std::nullopt;
  }
}

}  // namespace

ImageInfo jpeg_info(ByteSpan bytes, std::string_view where) {
  const jpeg_decompress_struct& info = open_jpeg(bytes, where);
  return {ImageFormat::jpeg, info.image_width, info.image_height, info.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3};
}

ImagePart jpeg_decode(ByteSpan bytes, const PartOptions& options, c10::function_ref<uint8_t*(size_t)> memory,
                      std::string_view where) {
  jpeg_decompress_struct& info = open_jpeg(bytes, where);
  check_part(options, info.image_width, info.image_height, where);
  check_jpeg_promise(info, bytes, where);
  if (info.restart_interval == 0) return decode_open_jpeg(info, bytes, options, memory, where);
  if (const auto part = decode_jpeg_tiles(info, bytes, options, memory, where)) return *part;
  return decode_open_jpeg(open_jpeg(bytes, where), bytes, options, memory, where);
}

Bytes jpeg_encode(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels, int quality) {
  JpegErrors errors;
  jpeg_compress_struct info{};
  info.err = errors.init();
  JpegMemory memory;
  const bool good = errors.guard([&] {
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &memory.data, &memory.size);
    info.image_width = static_cast<JDIMENSION>(width);
    info.image_height = static_cast<JDIMENSION>(height);
    info.input_components = static_cast<int>(channels);
    info.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);  // colour at half resolution
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    for (int64_t y = 0; y < height; ++y) {
      auto* row = const_cast<JSAMPROW>(pixels + y * width * channels);  // only read
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
  });
  jpeg_destroy_compress(&info);
  TORCH_CHECK(good, "encode_jpeg: ", errors.message, ".");
  return Bytes(memory.bytes().begin(), memory.bytes().end());
}

}  // namespace bellows::io
