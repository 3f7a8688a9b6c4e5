#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bellows::kernels {

/// 8-bit pixels with their channels side by side.
struct PixelImage {
  const uint8_t* data = nullptr;  ///< the first pixel of the first row
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;    ///< bytes from a row to the next
  int64_t pixel_stride = 0;  ///< bytes from a pixel to the next; vectors do `channels` and, mirrored, minus that
};

/// Types that pixels are written as.
enum class PixelType { u8, f32, bf16 };

/// (value / 255 − mean) / std for each channel, in floats, each operation rounded.
class PixelScale {
 public:
  /// Params: mean, std – one a channel; std above 0
  PixelScale(std::vector<float> mean, std::vector<float> std);

  /// The definition: what each value of each channel becomes.
  const std::array<float, 256>& table(int64_t channel) const { return tables_[static_cast<size_t>(channel)]; }
  const std::vector<float>& mean() const { return mean_; }
  const std::vector<float>& std() const { return std_; }
  /// One or three channels, for which vectors compute what the table says, bit for bit: tried with all its values when
  /// the scale was made.
  bool vectors_exact() const { return exact_; }

 private:
  std::vector<float> mean_, std_;
  std::vector<std::array<float, 256>> tables_;
  bool exact_ = false;
};

/// Writes a picture at `out`: [C, H, W] in this order, or [H, W, C] when `channels_last`. bf16 is rounded to nearest,
/// halves to even; u8 is not scaled.
/// Params:   scale – of as many channels as the picture has
/// Numerics: the bits of kernels/ref (tests/kernels/pixels_test.cpp)
/// Cost:     reads and writes once
/// Threads:  runs in the caller's; safe from all threads
void write_pixels(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out);

/// The same, value after value.
namespace ref {
/// Params: begin – leaves the first columns of what is written as they are
void write_pixels(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out,
                  int64_t begin = 0);
}  // namespace ref

}  // namespace bellows::kernels
