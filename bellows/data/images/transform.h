#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bellows/core/seed.h"

namespace bellows::kernels {
class PixelScale;
}

namespace bellows::data {

/// A view of an 8-bit image with interleaved channels; it does not own the memory. Strides may be negative (a flip is a
/// view).
struct ImageView {
  const uint8_t* pixels = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;    ///< bytes from a row to the next
  int64_t pixel_stride = 0;  ///< bytes from a pixel to its right neighbor; its channels are adjacent

  const uint8_t* at(int64_t y, int64_t x) const { return pixels + y * row_stride + x * pixel_stride; }
  /// Writes the pixels contiguously, with `out_row_stride` bytes per row.
  void copy_to(uint8_t* out, int64_t out_row_stride) const;
};

/// Working memory of one thread, reused from sample to sample.
class Scratch {
 public:
  /// Returns memory for `bytes` that stays valid until the second call after this one.
  uint8_t* next(size_t bytes);

  /// For one side of a resize.
  struct Weights {
    std::vector<int32_t> first, taps, weights;
    std::vector<double> exact;
  };
  std::vector<uint8_t> rows;  ///< between the two passes of a resize
  Weights columns, rows_axis;

 private:
  std::array<std::vector<uint8_t>, 2> turns_;
  size_t turn_ = 0;
};

struct Placement;

/// A step on an image. It returns a view of `image`, of `scratch`, or of memory that stays valid.
struct Transform {
  /// All randomness must come from `random`, which depends only on (seed, epoch, sample id, index of the step in the
  /// pipeline).
  /// Threads: called from several threads at once
  std::function<ImageView(const ImageView& image, Scratch& scratch, RandomStream& random)> run;
  bool deterministic = false;  ///< does not use `random`, so its result may be cached
  /// Set by steps that only crop, scale and mirror. It adds the step's effect to `placement`, so that consecutive steps
  /// run as one operation and only the required pixels are decoded. If this is not possible, it returns false and
  /// changes nothing; then `run` is called.
  std::function<bool(Placement& placement, RandomStream& random)> place;
};

/// Maximum side of the images that steps create. They have at most io::kMaxImagePixels pixels.
inline constexpr int64_t kMaxImageSide = 65536;

/// Params: what – prefix of the message
/// Throws: c10::ValueError if an image of height × width would be empty or exceeds these limits
void check_image_sides(const char* what, int64_t height, int64_t width);

/// Antialiased bilinear scaling to exactly height × width.
/// Numerics: bit-identical to Pillow's Image.resize(…, BILINEAR). Pillow 13 and later scale the height first where that
///           is cheaper, which changes values by at most 1 (tests/data/images/transform_test.cpp)
/// Throws:   c10::ValueError as check_image_sides
/// Ref:      torchvision.transforms.functional.resize on a PIL image
Transform resize(int64_t height, int64_t width);

/// Scales the shorter side to `side` and keeps the aspect ratio; the longer side becomes int(side * long / short).
/// Throws: c10::ValueError as check_image_sides; for the longer side when run
Transform resize_shorter(int64_t side);

/// Crops the center height × width.
/// Throws: c10::ValueError as check_image_sides. When run: if the image is smaller
/// Ref:    torchvision.transforms.functional.center_crop
Transform center_crop(int64_t height, int64_t width);

/// Adds `padding` pixels of `fill` on each side and crops a random height × width.
/// Throws: c10::ValueError as check_image_sides, or if padding is outside [0, kMaxImageSide]. When run: if the padded
///         image is smaller
/// Ref:    torchvision.transforms.RandomCrop
Transform random_crop(int64_t height, int64_t width, int64_t padding = 0, uint8_t fill = 0);

/// Crops a part of random size and shape and scales it to height × width. The part's area is `scale` times the image's
/// area, drawn uniformly. Its width divided by its height is within `ratio`, drawn log-uniformly. Ten parts are tried;
/// if none fits, the largest centered part with an allowed ratio is used.
/// Numerics: the crop is scaled as in resize
/// Throws:   c10::ValueError as check_image_sides, or unless 0 < least ≤ most for scale and ratio
/// Ref:      torchvision.transforms.RandomResizedCrop
Transform random_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale = {0.08, 1.0},
                              std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0});

/// Mirrors the image horizontally with probability `p`.
Transform random_flip(double p = 0.5);

/// Converts 8-bit images to floats: (value / 255 - mean) / std per channel.
/// Numerics: bit-identical to torchvision's to_tensor followed by normalize
class Normalizer {
 public:
  /// Params: mean, std – one value, or one per channel; empty: 0 and 1
  /// Throws: c10::ValueError if lengths differ or std is not positive
  Normalizer(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels);

  /// Writes one image to `out`: [C, H, W], or [H, W, C] if `channels_last`.
  /// Params: type – of the values: Float; BFloat16, rounded to nearest; Byte, which leaves them unchanged
  void run(const ImageView& image, void* out, bool channels_last, c10::ScalarType type = c10::ScalarType::Float) const;

 private:
  std::shared_ptr<const kernels::PixelScale> scale_;
};

}  // namespace bellows::data
