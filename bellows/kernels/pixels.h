#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bellows::kernels {

/// 8-bit pixels with interleaved channels.
struct PixelImage {
  const uint8_t* data = nullptr;  ///< the first pixel of the first row
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;    ///< bytes from one row to the next
  int64_t pixel_stride = 0;  ///< bytes from one pixel to the next; SIMD needs `channels`, or −`channels` for a mirrored
                             ///< image
};

/// Element type of the output.
enum class PixelType { u8, f32, bf16 };

/// Computes (value / 255 − mean) / std for each channel in float. Each operation is rounded separately.
class PixelScale {
 public:
  /// Params: mean, std – one value per channel; std must be greater than 0
  PixelScale(std::vector<float> mean, std::vector<float> std);

  /// Returns the output for each 8-bit value of the channel. This table defines the results.
  const std::array<float, 256>& table(int64_t channel) const { return tables_[static_cast<size_t>(channel)]; }
  const std::vector<float>& mean() const { return mean_; }
  const std::vector<float>& std() const { return std_; }
  /// Returns whether the SIMD code is bit-identical to the table. The constructor checks all values. The result is
  /// false if the number of channels is neither 1 nor 3.
  bool vectors_exact() const { return exact_; }

 private:
  std::vector<float> mean_, std_;
  std::vector<std::array<float, 256>> tables_;
  bool exact_ = false;
};

/// Writes an image to `out` as [C, H, W], or as [H, W, C] if `channels_last`. bf16 is rounded to nearest even. u8 is
/// not scaled.
/// Params:   scale – must have as many channels as the image
/// Numerics: bit-identical to kernels/ref (tests/kernels/pixels_test.cpp)
/// Cost:     reads and writes each value once
/// Threads:  thread-safe; runs on the calling thread
void write_pixels(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out);

/// Reference implementation in plain C++. It processes one value at a time.
namespace ref {
/// Params: begin – first column to write; all columns before it stay unchanged
void write_pixels(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out,
                  int64_t begin = 0);
}  // namespace ref

}  // namespace bellows::kernels
