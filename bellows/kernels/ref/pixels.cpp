#include "bellows/kernels/pixels.h"

#include <c10/util/BFloat16.h>

namespace bellows::kernels::ref {

namespace {

template <class T, class F>
void write_each(const PixelImage& in, bool channels_last, T* out, int64_t begin, const F& value_of) {
  const int64_t c_step = channels_last ? 1 : in.height * in.width, x_step = channels_last ? in.channels : 1;
  for (int64_t c = 0; c < in.channels; ++c) {
    for (int64_t y = 0; y < in.height; ++y) {
      const uint8_t* row = in.data + y * in.row_stride + c;
      T* to = out + c * c_step + y * in.width * x_step;
      for (int64_t x = begin; x < in.width; ++x) to[x * x_step] = value_of(row[x * in.pixel_stride], c);
    }
  }
}

}  // namespace

void write_pixels(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out,
                  int64_t begin) {
  const auto scaled = [&](uint8_t value, int64_t c) { return scale.table(c)[value]; };
  switch (type) {
    case PixelType::u8:
      return write_each(in, channels_last, static_cast<uint8_t*>(out), begin,
                        [](uint8_t value, int64_t) { return value; });
    case PixelType::f32:
      return write_each(in, channels_last, static_cast<float*>(out), begin, scaled);
    case PixelType::bf16:
      return write_each(in, channels_last, static_cast<c10::BFloat16*>(out), begin,
                        [&](uint8_t value, int64_t c) { return c10::BFloat16(scaled(value, c)); });
  }
}

}  // namespace bellows::kernels::ref
