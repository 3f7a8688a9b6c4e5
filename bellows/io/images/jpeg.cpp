#include <c10/util/Exception.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include <jpeglib.h>  // requires FILE

#include <jerror.h>  // requires jpeglib.h

#include "bellows/io/images/image_codecs.h"

namespace bellows::io {

namespace {

/// Error state of libjpeg; errors end with a longjmp to guard().
struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg passes a pointer to it
  std::jmp_buf stop;
  char message[JMSG_LENGTH_MAX];

  jpeg_error_mgr* init();
  /// Runs `body`, whose stack frames must not need destructors. Returns false if it failed; `message` holds the reason.
  template <class F>
  bool guard(const F& body) {
    if (setjmp(stop) != 0) return false;  // NOLINT(cert-err52-cpp): the library is in C
    body();
    return true;
  }
};

/// Memory that jpeg_mem_dest allocates.
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

  /// Reads the header of `bytes`; the decoder is then ready to start. Returns false on failure; errors.message holds
  /// the reason.
  bool open(ByteSpan bytes);

  JpegErrors errors;
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct info{};
  bool ready = false;
  Bytes tiles;  ///< for cut_jpeg
};

JpegErrors* errors_of(j_common_ptr common) {
  return reinterpret_cast<JpegErrors*>(common->err);
}

[[noreturn]] void fail_jpeg(j_common_ptr common) {
  JpegErrors* errors = errors_of(common);
  errors->manager.format_message(common, errors->message);
  std::longjmp(errors->stop, 1);  // NOLINT(cert-err52-cpp)
}

/// libjpeg continues after errors in the data and reports them as warnings. Extra bytes between markers are harmless,
/// as in Pillow. All other warnings, especially a premature end, mean wrong pixels.
void take_jpeg_message(j_common_ptr common, int level) {
  if (level < 0 && common->err->msg_code != JWRN_EXTRANEOUS_DATA) fail_jpeg(common);
}

/// Limit of scans, because each costs a pass over the whole image; no camera or tool writes as many.
constexpr int kMaxScans = 500;

void count_scans(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
  std::snprintf(errors_of(common)->message, JMSG_LENGTH_MAX, "more than %d scans", kMaxScans);
  std::longjmp(errors_of(common)->stop, 1);  // NOLINT(cert-err52-cpp)
}

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

/// True for CMYK images.
bool has_inks(const jpeg_decompress_struct& info) {
  return info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
}

/// Rejects a header that declares more blocks than the data can hold, before any memory is allocated for them. Each
/// block of 8 × 8 values takes at least one bit (less with an arithmetic coder).
/// Throws: c10::ValueError if the header declares too many blocks
void check_jpeg_promise(const jpeg_decompress_struct& info, ByteSpan bytes, std::string_view where) {
  uint64_t blocks = 0;
  for (int i = 0; i < info.num_components; ++i)
    blocks += uint64_t{info.comp_info[i].width_in_blocks} * info.comp_info[i].height_in_blocks;
  TORCH_CHECK_VALUE(info.arith_code || blocks <= 8 * uint64_t{bytes.size()}, where,
                    ": the JPEG data is truncated or corrupt: ", info.image_width, " × ", info.image_height,
                    " pixels need more than ", bytes.size(), " bytes.");
}

constexpr int kFirstRestart = 0xd0, kEndOfImage = 0xd9;

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Regular tiles of an image with restart intervals, which can be decoded separately.
struct Tiles {
  int64_t unit_height = 0, unit_width = 0;  // pixels of a coding unit (MCU), some blocks of each channel
  int64_t height = 0, width = 0;            // pixels of a tile
  int64_t rows = 0, columns = 0;
};

/// True if one Huffman-coded scan holds, or could hold, all channels. For a single channel with other sampling factors,
/// the coding units differ from the decoder's.
bool can_be_tiled(const jpeg_decompress_struct& info) {
  const bool plain = info.num_components == 3 || (info.max_h_samp_factor == 1 && info.max_v_samp_factor == 1);
  return plain && info.num_components <= 3 && !info.arith_code && !has_inks(info);
}

int64_t units_across(const jpeg_decompress_struct& info) {
  return divided_up(info.image_width, int64_t{DCTSIZE} * info.max_h_samp_factor);
}

std::optional<Tiles> tiles_of(jpeg_decompress_struct& info) {
  const int64_t across = units_across(info), every = info.restart_interval;
  if (every == 0 || (across % every != 0 && every % across != 0)) return std::nullopt;
  if (!can_be_tiled(info) || jpeg_has_multiple_scans(&info)) return std::nullopt;
  Tiles tiles;
  tiles.unit_height = int64_t{DCTSIZE} * info.max_v_samp_factor;
  tiles.unit_width = int64_t{DCTSIZE} * info.max_h_samp_factor;
  tiles.height = tiles.unit_height * divided_up(every, across);
  tiles.width = tiles.unit_width * std::min(every, across);
  tiles.rows = divided_up(info.image_height, tiles.height);
  tiles.columns = divided_up(info.image_width, tiles.width);
  return tiles;
}

struct Range {
  int64_t begin = 0, end = 0;
};

/// The tiles along one axis that contain [first, first + count) and one unit on each side.
Range tiles_around(int64_t first, int64_t count, int64_t unit, int64_t tile, int64_t tiles) {
  const int64_t before = std::max<int64_t>(first / unit - 1, 0), behind = (first + count - 1) / unit + 2;
  return {before * unit / tile, std::min(divided_up(behind * unit, tile), tiles)};
}

/// Position of height and width in the frame's header; 0 if there is none.
size_t find_frame_size(ByteSpan header) {
  const auto byte = [&](size_t i) { return std::to_integer<unsigned>(header[i]); };
  for (size_t at = 2; at + 9 <= header.size() && byte(at) == 0xff;) {
    if (byte(at + 1) == 0xc0 || byte(at + 1) == 0xc1) return at + 5;
    at += 2 + 256 * byte(at + 2) + byte(at + 3);
  }
  return 0;
}

void put_16_bits(Bytes& bytes, size_t at, int64_t value) {
  bytes[at] = static_cast<std::byte>(value >> 8);
  bytes[at + 1] = static_cast<std::byte>(value & 0xff);
}

/// Takes the next interval and the marker after it from `coded`. Returns nothing if it ends with another marker.
ByteSpan take_interval(ByteSpan& coded, int marker) {
  const std::byte* at = coded.data();
  const std::byte* const last = at + coded.size() - 1;
  while (at < last) {
    at = static_cast<const std::byte*>(std::memchr(at, 0xff, static_cast<size_t>(last - at)));
    if (!at) break;
    at += 2;
    if (at[-1] == std::byte{0}) continue;  // a data byte of all ones
    if (at[-1] != static_cast<std::byte>(marker)) break;
    const ByteSpan taken(coded.data(), at);
    coded = ByteSpan(at, last + 1);
    return taken;
  }
  return {};
}

/// Appends the intervals of some tiles, with renumbered markers. Returns false if the old markers are not in order.
bool copy_tiles(ByteSpan coded, const Tiles& tiles, Range rows, Range columns, Bytes& out) {
  int64_t copied = 0;
  for (int64_t i = 0; i < (rows.end - 1) * tiles.columns + columns.end; ++i) {
    const bool is_last = i + 1 == tiles.rows * tiles.columns;
    const ByteSpan interval = take_interval(coded, is_last ? kEndOfImage : kFirstRestart + static_cast<int>(i % 8));
    if (interval.empty()) return false;
    const int64_t column = i % tiles.columns;
    if (i / tiles.columns < rows.begin || column < columns.begin || column >= columns.end) continue;
    out.insert(out.end(), interval.begin(), interval.end());
    out.back() = static_cast<std::byte>(kFirstRestart + copied++ % 8);
  }
  out.back() = std::byte{kEndOfImage};
  return true;
}

/// Assembles the restart intervals of `bytes` that `part` needs into a separate JPEG. Its pixels are bit-identical to
/// those of the whole image in this part and one block around it, which smooth upsampling reads.
/// Params:  info – only the header of `bytes` has been read
///          out – grows as needed and never shrinks
/// Returns: the part of the image that `out` covers; nothing if there are no such intervals or they are not in order
std::optional<ImageRegion> cut_jpeg(jpeg_decompress_struct& info, ByteSpan bytes, const ImageRegion& part, Bytes& out) {
  const std::optional<Tiles> tiles = tiles_of(info);
  if (!tiles) return std::nullopt;
  const size_t begin = bytes.size() - info.src->bytes_in_buffer;
  const ByteSpan header = bytes.first(begin), coded = bytes.subspan(begin);
  const size_t frame = find_frame_size(header);
  if (frame == 0 || as_text(coded).rfind("\xff\xd9") == std::string_view::npos) return std::nullopt;
  const Range rows = tiles_around(part.y, part.height, tiles->unit_height, tiles->height, tiles->rows);
  const Range columns = tiles_around(part.x, part.width, tiles->unit_width, tiles->width, tiles->columns);
  if (rows.begin == 0 && columns.begin == 0 && columns.end == tiles->columns) return std::nullopt;
  const int64_t y = rows.begin * tiles->height, x = columns.begin * tiles->width;
  const ImageRegion covered{y, x, std::min<int64_t>(rows.end * tiles->height, info.image_height) - y,
                            std::min<int64_t>(columns.end * tiles->width, info.image_width) - x};
  out.assign(header.begin(), header.end());
  put_16_bits(out, frame, covered.height);
  put_16_bits(out, frame + 2, covered.width);
  if (!copy_tiles(coded, *tiles, rows, columns, out)) return std::nullopt;
  return covered;
}

/// One decoder per thread, because creating one costs as much as decoding a small image. After an error it is
/// discarded, because its state may be invalid.
thread_local std::unique_ptr<JpegReader> jpeg_reader;

std::string take_jpeg_error() {
  std::string reason = jpeg_reader->errors.message;
  jpeg_reader.reset();
  return reason;
}

template <class F>
void check_jpeg(std::string_view where, const F& body) {
  TORCH_CHECK_VALUE(jpeg_reader->errors.guard(body), where,
                    ": the JPEG data is truncated or corrupt: ", take_jpeg_error(), ".");
}

/// Reads the header of `bytes`; the decoder is then ready to start.
jpeg_decompress_struct& open_jpeg(ByteSpan bytes, std::string_view where) {
  if (!jpeg_reader) jpeg_reader = std::make_unique<JpegReader>();
  TORCH_CHECK(jpeg_reader->ready, "cannot start libjpeg: ", take_jpeg_error(), ".");
  jpeg_decompress_struct& info = jpeg_reader->info;
  const bool good = jpeg_reader->open(bytes);
  TORCH_CHECK_VALUE(good, where, ": the JPEG header is damaged or truncated (", bytes.size(),
                    " bytes): ", take_jpeg_error(), ".");
  check_image_size(info.image_width, info.image_height, where);
  return info;
}

/// Converts inverted CMYK (Adobe's format) with Pillow's arithmetic; `out` may be `in`.
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

/// `part` in pixels of the image shrunk to 1 / `shrink`, rounded outwards.
ImageRegion shrunk(const ImageRegion& part, int64_t shrink) {
  const int64_t y = part.y / shrink, x = part.x / shrink;
  return {y, x, (part.y + part.height + shrink - 1) / shrink - y, (part.x + part.width + shrink - 1) / shrink - x};
}

/// True if decoding may stop early and skip columns: the image must be coded in a single scan and not be CMYK. For
/// other images, smoothing between blocks reads neighboring columns.
bool can_be_cut(jpeg_decompress_struct& info) {
  return !jpeg_has_multiple_scans(&info) && !has_inks(info);
}

/// Starts the decoder. Its rows begin at column `left`, far enough before the part for smooth upsampling.
void start_jpeg(jpeg_decompress_struct& info, const PartOptions& options, const ImageRegion& part, bool gray,
                JDIMENSION& left, std::string_view where) {
  info.out_color_space = has_inks(info) ? JCS_CMYK : gray ? JCS_GRAYSCALE : JCS_RGB;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(options.shrink);
  info.dct_method = options.fast ? JDCT_IFAST : JDCT_ISLOW;
  // At full size, libjpeg-turbo 2.1's other upsampling reads uninitialized memory if rows and columns are skipped. At
  // smaller sizes, chroma at half resolution in both directions is not upsampled at all.
  info.do_fancy_upsampling = options.fast && options.shrink > 1 ? FALSE : TRUE;
  check_jpeg(where, [&] {
    jpeg_start_decompress(&info);
    if (!can_be_cut(info) || part.width >= info.output_width) return;
    constexpr JDIMENSION margin = 2;  // one chroma value at half resolution
    const auto first = static_cast<JDIMENSION>(part.x), last = first + static_cast<JDIMENSION>(part.width);
    left = first - std::min(first, margin);
    JDIMENSION width = std::min(last + margin, info.output_width) - left;
    jpeg_crop_scanline(&info, &left, &width);
  });
}

/// Reads rows [begin, end) into rows of `stride` bytes.
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

/// Stops decoding before the end. Detects truncated files by the missing end marker, whose bytes cannot occur within
/// coded data.
void leave_jpeg(jpeg_decompress_struct& info, ByteSpan bytes, std::string_view where) {
  constexpr size_t read_ahead = 16;  // bytes that the decoder may have read but not used
  const size_t at = bytes.size() - info.src->bytes_in_buffer;
  const std::string_view rest = as_text(bytes.subspan(at - std::min(at, read_ahead)));
  TORCH_CHECK_VALUE(rest.rfind("\xff\xd9") != std::string_view::npos, where,
                    ": the JPEG data is truncated or corrupt: there is no end marker in ", bytes.size(), " bytes.");
  jpeg_abort_decompress(&info);
}

/// Decodes a part of the open image.
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

/// Decodes by jumping between restart markers. Returns nothing if there are none or on an error; the decoding of all
/// data then reports the error.
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
    jpeg_set_defaults(&info);  // chroma at half resolution
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

namespace {

/// Number of units between restarts, which divides a row evenly. Each restart costs some bytes, and units of an
/// interval outside a crop cost some time. 32 pixels are a good size; more than a quarter of the image is too much.
unsigned restart_interval(const jpeg_decompress_struct& info) {
  const int64_t across = units_across(info), good = std::max(32 / (DCTSIZE * info.max_h_samp_factor), 1);
  for (int64_t units = good; 4 * units <= across; ++units) {
    if (across % units == 0) return static_cast<unsigned>(units);
  }
  int64_t units = good;
  while (across % units != 0) --units;
  return static_cast<unsigned>(units);
}

/// True if each bit of each coefficient is present. Decoders smooth images with missing bits.
bool has_all_bits(const jpeg_decompress_struct& info) {
  if (!info.coef_bits) return true;  // not progressive
  for (int i = 0; i < info.num_components; ++i) {
    for (const int missing : info.coef_bits[i]) {
      if (missing != 0) return false;
    }
  }
  return true;
}

bool starts_with(const jpeg_marker_struct& marker, std::string_view text) {
  return marker.data_length >= text.size() && std::memcmp(marker.data, text.data(), text.size()) == 0;
}

/// Copies the markers that libjpeg does not write by itself.
void copy_markers(const jpeg_decompress_struct& in, jpeg_compress_struct& out) {
  for (const jpeg_marker_struct* marker = in.marker_list; marker; marker = marker->next) {
    const bool jfif = out.write_JFIF_header && marker->marker == JPEG_APP0 && starts_with(*marker, "JFIF");
    const bool adobe = out.write_Adobe_marker && marker->marker == JPEG_APP0 + 14 && starts_with(*marker, "Adobe");
    if (!jfif && !adobe) jpeg_write_marker(&out, marker->marker, marker->data, marker->data_length);
  }
}

bool write_with_restarts(JpegReader& reader, jpeg_compress_struct& out, JpegMemory& memory) {
  out.err = &reader.errors.manager;
  bool complete = false;
  const bool good = reader.errors.guard([&] {
    jpeg_create_compress(&out);
    jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&reader.info);
    complete = has_all_bits(reader.info);
    if (!complete) return;
    jpeg_mem_dest(&out, &memory.data, &memory.size);
    jpeg_copy_critical_parameters(&reader.info, &out);
    out.optimize_coding = TRUE;
    out.restart_interval = restart_interval(reader.info);
    jpeg_write_coefficients(&out, coefficients);
    copy_markers(reader.info, out);
    jpeg_finish_compress(&out);
    jpeg_finish_decompress(&reader.info);
  });
  jpeg_destroy_compress(&out);
  return good;
}

}  // namespace

Bytes jpeg_with_restarts(ByteSpan jpeg, std::string_view where) {
  JpegReader reader;
  jpeg_save_markers(&reader.info, JPEG_COM, 0xffff);
  for (int i = 0; i < 16; ++i) jpeg_save_markers(&reader.info, JPEG_APP0 + i, 0xffff);
  const bool opened = reader.open(jpeg);
  TORCH_CHECK_VALUE(opened, where, ": the JPEG header is damaged or truncated (", jpeg.size(),
                    " bytes): ", reader.errors.message, ".");
  jpeg_decompress_struct& info = reader.info;
  check_image_size(info.image_width, info.image_height, where);
  check_jpeg_promise(info, jpeg, where);
  if (!can_be_tiled(info) || tiles_of(info)) return Bytes(jpeg.begin(), jpeg.end());
  jpeg_compress_struct out{};
  JpegMemory memory;
  const bool good = write_with_restarts(reader, out, memory);
  TORCH_CHECK_VALUE(good, where, ": the JPEG data is truncated or corrupt: ", reader.errors.message, ".");
  const ByteSpan result = memory.data ? memory.bytes() : jpeg;
  return Bytes(result.begin(), result.end());
}

}  // namespace bellows::io
