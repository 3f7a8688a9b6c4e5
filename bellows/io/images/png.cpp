#include <c10/util/Exception.h>
#include <png.h>

#include <cstdio>
#include <cstring>

#include "bellows/io/images/image_codecs.h"

namespace bellows::io {

namespace {

/// The state for libpng's callbacks.
struct PngState {
  ByteSpan input;
  size_t position = 0;
  Bytes* output = nullptr;
  char message[128] = {};
};

// libpng reports errors by longjmp, which must not skip destructors: all objects that own memory are outside guarded().
void on_png_error(png_structp png, png_const_charp message) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state->message, sizeof state->message, "%s", message);
  png_longjmp(png, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep out, size_t count) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (count > state->input.size() - state->position) png_error(png, "the data ends before the image does");
  std::memcpy(out, state->input.data() + state->position, count);
  state->position += count;
}

void write_png_bytes(png_structp png, png_bytep data, size_t count) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  bool full = false;
  try {
    state->output->insert(state->output->end(), bytes, bytes + count);
  } catch (...) {
    full = true;
  }
  if (full) png_error(png, "out of memory");
}

/// Runs `body`, which must not own anything. Returns false on a libpng error.
template <class Body>
bool guarded(png_structp png, const Body& body) {
  if (setjmp(png_jmpbuf(png))) return false;
  body();
  return true;
}

struct PngReader {
  PngReader(ByteSpan bytes, std::string_view where_in) : where(where_in) {
    state.input = bytes;
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, on_png_error, on_png_warning);
    info = png ? png_create_info_struct(png) : nullptr;
    if (!info) png_destroy_read_struct(&png, nullptr, nullptr);
    TORCH_CHECK(info, where, ": cannot start libpng.");
    png_set_read_fn(png, &state, read_png_bytes);
    png_set_user_limits(png, 0x7fffffff, 0x7fffffff);  // check_image_size has a better message
    png_set_chunk_malloc_max(png, 1 << 20);
    png_set_chunk_cache_max(png, 16);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  template <class Body>
  void run(const Body& body) {
    const bool good = guarded(png, body);
    TORCH_CHECK_VALUE(good, where, ": the PNG is damaged or truncated at byte ", state.position, " of ",
                      state.input.size(), ": ", state.message, ".");
  }

  ImageInfo read_header() {
    run([this] { png_read_info(png, info); });
    const int type = png_get_color_type(png, info);
    const bool palette = type == PNG_COLOR_TYPE_PALETTE;
    const bool alpha = (type & PNG_COLOR_MASK_ALPHA) || png_get_valid(png, info, PNG_INFO_tRNS);
    const int64_t channels = (palette || (type & PNG_COLOR_MASK_COLOR) ? 3 : 1) + (alpha ? 1 : 0);
    return {ImageFormat::png, png_get_image_width(png, info), png_get_image_height(png, info), channels};
  }

  PngState state;
  std::string_view where;
  png_structp png = nullptr;
  png_infop info = nullptr;
};

/// Rejects headers that declare more data than the file can hold, before the image is allocated and cleared: deflate
/// compresses at most 1032 times.
void check_promise(const PngReader& reader, const ImageInfo& info) {
  const uint64_t raw = png_get_rowbytes(reader.png, reader.info) * static_cast<uint64_t>(info.height);
  TORCH_CHECK_VALUE(raw <= 1032 * static_cast<uint64_t>(reader.state.input.size()), reader.where,
                    ": the PNG is truncated or corrupt: ", info.width, " × ", info.height, " pixels need more than ",
                    reader.state.input.size(), " bytes.");
}

void set_transforms(const PngReader& reader, ColorMode mode) {
  png_set_expand(reader.png);
  png_set_strip_16(reader.png);
  if (mode == ColorMode::keep) return;
  png_set_strip_alpha(reader.png);
  // Color is converted to gray after decoding, with Pillow's weights instead of libpng's.
  if (mode == ColorMode::rgb) png_set_gray_to_rgb(reader.png);
}

void read_rows(const PngReader& reader, uint8_t* out, int64_t height, int64_t row_bytes) {
  for (int pass = png_set_interlace_handling(reader.png); pass > 0; --pass) {
    for (int64_t y = 0; y < height; ++y) png_read_row(reader.png, out + y * row_bytes, nullptr);
  }
  png_read_end(reader.png, nullptr);
}

}  // namespace

ImageInfo png_info(ByteSpan bytes, std::string_view where) {
  PngReader reader(bytes, where);
  const ImageInfo info = reader.read_header();
  check_image_size(info.width, info.height, where);
  check_promise(reader, info);
  return info;
}

void png_decode(ByteSpan bytes, ColorMode mode, const ImageInfo& info, uint8_t* out, std::string_view where) {
  PngReader reader(bytes, where);
  reader.read_header();
  const int64_t pixels = info.width * info.height;
  const bool to_gray = mode == ColorMode::gray && info.channels >= 3;
  std::vector<uint8_t> colors(to_gray ? static_cast<size_t>(pixels * 3) : 0);
  uint8_t* target = to_gray ? colors.data() : out;
  const int64_t row_bytes = info.width * (to_gray ? 3 : info.channels_as(mode));
  reader.run([&reader, mode] {
    set_transforms(reader, mode);
    png_set_interlace_handling(reader.png);
    png_read_update_info(reader.png, reader.info);
  });
  TORCH_CHECK(static_cast<int64_t>(png_get_rowbytes(reader.png, reader.info)) == row_bytes, where,
              ": libpng returns rows of ", png_get_rowbytes(reader.png, reader.info), " bytes, expected ", row_bytes,
              ".");
  reader.run([&reader, target, &info, row_bytes] { read_rows(reader, target, info.height, row_bytes); });
  for (int64_t i = 0; i < (to_gray ? pixels : 0); ++i)
    out[i] = luma(colors[3 * i], colors[3 * i + 1], colors[3 * i + 2]);
}

Bytes png_encode(const uint8_t* pixels, int64_t height, int64_t width, int64_t channels, int level) {
  constexpr int types[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                           PNG_COLOR_TYPE_RGB_ALPHA};
  Bytes out;
  PngState state;
  state.output = &out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &state, on_png_error, on_png_warning);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  const bool good =
      info && guarded(png, [&] {
        png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
        png_set_write_fn(png, &state, write_png_bytes, nullptr);
        png_set_compression_level(png, level);
        png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8, types[channels],
                     PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
        png_write_info(png, info);
        for (int64_t y = 0; y < height; ++y) png_write_row(png, pixels + y * width * channels);
        png_write_end(png, nullptr);
      });
  png_destroy_write_struct(&png, &info);
  TORCH_CHECK(good, "encode_png: ", state.message[0] ? state.message : "cannot start libpng", ".");
  return out;
}

}  // namespace bellows::io
