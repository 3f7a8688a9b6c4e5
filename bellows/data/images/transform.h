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

/// A view of an 8-bit image with interleaved channels. The view does not own the memory. Strides may be negative, so a
/// flipped image can also be a view.
struct ImageView {
  const uint8_t* pixels = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t row_stride = 0;    ///< bytes from a row to the next row
  int64_t pixel_stride = 0;  ///< bytes from a pixel to its right neighbor; the channels of a pixel are adjacent

  const uint8_t* at(int64_t y, int64_t x) const { return pixels + y * row_stride + x * pixel_stride; }
  /// Copies the pixels to `out`. The pixels of a row are contiguous, and rows are `out_row_stride` bytes apart.
  void copy_to(uint8_t* out, int64_t out_row_stride) const;
};

/// Working memory of one thread. It is reused for each sample.
class Scratch {
 public:
  /// Returns a buffer of at least `bytes` bytes. Two buffers alternate, so a buffer stays valid until next() has been
  /// called twice more.
  uint8_t* next(size_t bytes);

  /// Weights for one dimension of a resize.
  struct Weights {
    std::vector<int32_t> first, taps, weights;
    std::vector<double> exact;
  };
  std::vector<uint8_t> rows;  ///< the image between the two passes of a resize
  Weights columns, rows_axis;

 private:
  std::array<std::vector<uint8_t>, 2> turns_;
  size_t turn_ = 0;
};

struct Placement;

/// A step on an image.
struct Transform {
  /// Runs the step. The result is a view of `image`, of `scratch`, or of memory that stays valid after the call. All
  /// randomness must come from `random`, which depends only on the seed, the epoch, the sample id and the index of the
  /// step in the pipeline. If an order repeats samples, `random` also depends on the position in the sequence.
  /// Threads: must be thread-safe, because several threads call the function at the same time
  std::function<ImageView(const ImageView& image, Scratch& scratch, RandomStream& random)> run;
  bool deterministic = false;  ///< true if the step does not use `random`, so that its result may be cached
  /// Set only for steps that do nothing but crop, scale or mirror. The function adds the effect of the step to
  /// `placement`. Consecutive steps then run as one operation, and only the required pixels are decoded. If the effect
  /// cannot be added, the function changes nothing and returns false, and `run` is called instead.
  std::function<bool(Placement& placement, RandomStream& random)> place;
};

/// Maximum height and width in pixels of the images that steps create. In addition, an image has at most
/// io::kMaxImagePixels pixels.
inline constexpr int64_t kMaxImageSide = 65536;

/// Checks the size of an image that a step would create.
/// Params: what – prefix of the message
/// Throws: c10::ValueError if an image of height × width pixels would be empty, or would exceed kMaxImageSide or
///         io::kMaxImagePixels
void check_image_sides(const char* what, int64_t height, int64_t width);

/// Scales the image to exactly height × width, with antialiased bilinear interpolation.
/// Numerics: bit-identical to Pillow's Image.resize(…, BILINEAR). Pillow 13 and later scale the height first if that is
///           cheaper, which changes values by at most 1 (tests/data/images/transform_test.cpp)
/// Throws:   exceptions of check_image_sides()
/// Ref:      torchvision.transforms.functional.resize on a PIL image
Transform resize(int64_t height, int64_t width);

/// Scales the shorter side to `side` pixels and keeps the aspect ratio. The longer side becomes int(side * longer /
/// shorter).
/// Throws: exceptions of check_image_sides(); the longer side is checked when the transform runs
Transform resize_shorter(int64_t side);

/// Crops a centered region of height × width pixels.
/// Throws: exceptions of check_image_sides(). When the transform runs: c10::ValueError if the image is smaller than the
///         region
/// Ref:    torchvision.transforms.functional.center_crop
Transform center_crop(int64_t height, int64_t width);

/// Adds `padding` pixels with the value `fill` on each side and crops a random region of height × width pixels.
/// Throws: exceptions of check_image_sides(); c10::ValueError if padding is outside [0, kMaxImageSide]. When the
///         transform runs: c10::ValueError if the padded image is smaller than the region
/// Ref:    torchvision.transforms.RandomCrop
Transform random_crop(int64_t height, int64_t width, int64_t padding = 0, uint8_t fill = 0);

/// Crops a region of random size and shape, and scales it to height × width. The area of the region, divided by the
/// area of the image, is drawn uniformly from `scale`. The width of the region, divided by its height, is drawn
/// log-uniformly from `ratio`. Up to ten regions are drawn until one fits into the image. If none fits, the largest
/// centered region with an allowed ratio is used.
/// Numerics: the region is scaled as in resize()
/// Throws:   exceptions of check_image_sides(); c10::ValueError if the bounds of `scale` or `ratio` do not satisfy 0 <
///           minimum ≤ maximum
/// Ref:      torchvision.transforms.RandomResizedCrop
Transform random_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale = {0.08, 1.0},
                              std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0});

/// Mirrors the image horizontally with probability `p`.
/// Throws: c10::ValueError if p is outside [0, 1]
Transform random_flip(double p = 0.5);

/// Converts 8-bit images to floats: (value / 255 - mean) / std, with one mean and std per channel.
/// Numerics: bit-identical to torchvision's to_tensor followed by normalize
class Normalizer {
 public:
  /// Params: mean, std – one value, or one value per channel; empty: mean 0 and std 1
  /// Throws: c10::ValueError if a length is neither 1 nor the number of channels, or if a std is not positive
  Normalizer(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels);

  /// Writes one image to `out`: [C, H, W], or [H, W, C] if `channels_last` is true.
  /// Params: type – element type of the output: Float, BFloat16 (rounded to nearest) or Byte (not normalized)
  void run(const ImageView& image, void* out, bool channels_last, c10::ScalarType type = c10::ScalarType::Float) const;

 private:
  std::shared_ptr<const kernels::PixelScale> scale_;
};

}  // namespace bellows::data
