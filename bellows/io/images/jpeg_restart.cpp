#include "bellows/io/images/jpeg_restart.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "bellows/io/images/image_codecs.h"
#include "bellows/io/images/jpeg_impl.h"

namespace bellows::io {

namespace {

constexpr int kFirstRestart = 0xd0, kEndOfImage = 0xd9;

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// An image whose coded data starts anew at regular places falls into tiles that can be decoded on their own.
struct Tiles {
  int64_t unit_height = 0, unit_width = 0;  // pixels of a unit of the code, some blocks of each channel
  int64_t height = 0, width = 0;            // pixels of a tile
  int64_t rows = 0, columns = 0;
};

/// Whether one Huffman-coded scan holds, or could hold, all channels. Of a single channel with other sampling factors
/// the code has other units than the decoder.
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

/// The tiles along one axis that hold [first, first + count) and a unit on each side.
Range tiles_around(int64_t first, int64_t count, int64_t unit, int64_t tile, int64_t tiles) {
  const int64_t before = std::max<int64_t>(first / unit - 1, 0), behind = (first + count - 1) / unit + 2;
  return {before * unit / tile, std::min(divided_up(behind * unit, tile), tiles)};
}

/// Where height and width stand in the frame's header; 0: nowhere.
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

/// Takes the next interval and the marker behind it from `coded`. Nothing: it ends in another marker.
ByteSpan take_interval(ByteSpan& coded, int marker) {
  const std::byte* at = coded.data();
  const std::byte* const last = at + coded.size() - 1;
  while (at < last) {
    at = static_cast<const std::byte*>(std::memchr(at, 0xff, static_cast<size_t>(last - at)));
    if (!at) break;
    at += 2;
    if (at[-1] == std::byte{0}) continue;  // a byte of all ones within the data
    if (at[-1] != static_cast<std::byte>(marker)) break;
    const ByteSpan taken(coded.data(), at);
    coded = ByteSpan(at, last + 1);
    return taken;
  }
  return {};
}

/// Appends the intervals of some tiles with markers in their new order. False: the old ones are not in order.
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

}  // namespace

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

namespace {

/// Units between restarts, which rows divide into evenly. Each restart costs some bytes, and each unit beside a crop
/// that shares an interval with it some time: 32 pixels are good, more than a quarter of the image is too much.
unsigned restart_interval(const jpeg_decompress_struct& info) {
  const int64_t across = units_across(info), good = std::max(32 / (DCTSIZE * info.max_h_samp_factor), 1);
  for (int64_t units = good; 4 * units <= across; ++units) {
    if (across % units == 0) return static_cast<unsigned>(units);
  }
  int64_t units = good;
  while (across % units != 0) --units;
  return static_cast<unsigned>(units);
}

/// Whether each bit of each coefficient is there. Decoders smooth what is not.
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

/// Those that libjpeg does not write by itself.
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
  TORCH_CHECK_VALUE(opened, where, ": JPEG header damaged or truncated (", jpeg.size(),
                    " bytes): ", reader.errors.message, ".");
  jpeg_decompress_struct& info = reader.info;
  check_image_size(info.image_width, info.image_height, where);
  check_jpeg_promise(info, jpeg, where);
  if (!can_be_tiled(info) || tiles_of(info)) return Bytes(jpeg.begin(), jpeg.end());
  jpeg_compress_struct out{};
  JpegMemory memory;
  const bool good = write_with_restarts(reader, out, memory);
  TORCH_CHECK_VALUE(good, where, ": JPEG data truncated or corrupt: ", reader.errors.message, ".");
  const ByteSpan result = memory.data ? memory.bytes() : jpeg;
  return Bytes(result.begin(), result.end());
}

}  // namespace bellows::io
