#pragma once

#include "bellows/core/seed.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace bellows::data {

/// An 8-bit picture, interleaved channels, in memory that someone else owns. Strides may be negative (a flip is a
/// view).
struct ImageView {
  const uint8_t* pixels = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;    ///< bytes from a row to the next
  int64_t pixel_stride = 0;  ///< bytes from a pixel to its right neighbour; channels lie side by side

  const uint8_t* at(int64_t y, int64_t x) const { return pixels + y * row_stride + x * pixel_stride; }
  /// Writes the pixels side by side, one row each `out_row_stride` bytes.
  void copy_to(uint8_t* out, int64_t out_row_stride) const;
};

/// Working memory of one thread, reused from sample to sample.
class Scratch {
 public:
  /// Memory for `bytes` that stays valid until the next-but-one call.
  uint8_t* next(size_t bytes);
  std::vector<uint8_t> rows;     ///< between the two passes of a resize
  std::vector<int32_t> weights;  ///< of a resize
  std::vector<int32_t> bounds;

 private:
  std::array<std::vector<uint8_t>, 2> turns_;
  size_t turn_ = 0;
};

/// A step on a picture: returns a view of `image`, of `scratch`, or of memory that lives on.
struct Transform {
  /// What is random in it may come only from `random`, which depends on (seed, epoch, sample id, place of the step in
  /// the pipeline) and on nothing else.
  /// Threads:  called from several threads at once.
  std::function<ImageView(const ImageView& image, Scratch& scratch, RandomStream& random)> run;
  bool deterministic = false;  ///< never looks at `random`: its result may be cached
};

/// Pictures that a step makes have sides up to this, and at most io::kMaxImagePixels pixels.
inline constexpr int64_t kMaxImageSide = 65536;

/// Throws: c10::ValueError – a picture of height × width would be empty or above these limits
/// Params: what – begins the message
void check_image_sides(const char* what, int64_t height, int64_t width);

/// Antialiased bilinear scaling to exactly height × width.
/// Throws:   c10::ValueError – as check_image_sides
/// Numerics: equal to Pillow's Image.resize(…, BILINEAR) bit for bit; Pillow 13 and later scale the height first where
///           that is cheaper, which changes values by at most 1 (tests/data/transform_test.cpp)
/// Ref:      torchvision.transforms.functional.resize on a PIL image
Transform resize(int64_t height, int64_t width);

/// Scales the shorter side to `side` and keeps the ratio; the longer one is int(side * long / short).
/// Throws: c10::ValueError – as check_image_sides, for the longer side when run
Transform resize_shorter(int64_t side);

/// The middle height × width.
/// Throws: c10::ValueError – as check_image_sides; when run: the picture is smaller
/// Ref: torchvision.transforms.functional.center_crop
Transform center_crop(int64_t height, int64_t width);

/// A random height × width out of the picture after `padding` pixels of `fill` were added on each side.
/// Throws: c10::ValueError – as check_image_sides; padding outside [0, kMaxImageSide]; when run: the padded picture is
///         smaller
/// Ref: torchvision.transforms.RandomCrop
Transform random_crop(int64_t height, int64_t width, int64_t padding = 0, uint8_t fill = 0);

/// Mirrors left and right with probability `p`.
Transform random_flip(double p = 0.5);

/// 8-bit pictures to floats: (value / 255 - mean) / std for each channel, through a table of 256 values a channel.
/// Numerics: equal to torchvision's to_tensor followed by normalize, bit for bit
class Normalizer {
 public:
  /// Params: mean, std – one value, or one for each channel; empty: 0 and 1
  /// Throws: c10::ValueError – lengths differ, std not positive
  Normalizer(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels);

  /// Writes one picture at `out`: [C, H, W] in this order, or [H, W, C] when `channels_last`.
  void run(const ImageView& image, float* out, bool channels_last) const;

 private:
  std::vector<std::array<float, 256>> table_;
};

}  // namespace bellows::data
