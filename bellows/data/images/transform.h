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

  /// Of one side of a resize.
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

/// A step on a picture: returns a view of `image`, of `scratch`, or of memory that lives on.
struct Transform {
  /// What is random in it may come only from `random`, which depends on (seed, epoch, sample id, place of the step in
  /// the pipeline) and on nothing else.
  /// Threads:  called from several threads at once.
  std::function<ImageView(const ImageView& image, Scratch& scratch, RandomStream& random)> run;
  bool deterministic = false;  ///< never looks at `random`: its result may be cached
  /// Set by steps that only cut, scale and mirror: adds what the step does to what the steps before it do, so that it
  /// can be done at once and only what is needed is decoded. False, and nothing is changed, where that cannot be; then
  /// `run` is called.
  std::function<bool(Placement& placement, RandomStream& random)> place;
};

/// Pictures that a step makes have sides up to this, and at most io::kMaxImagePixels pixels.
inline constexpr int64_t kMaxImageSide = 65536;

/// Throws: c10::ValueError – a picture of height × width would be empty or above these limits
/// Params: what – begins the message
void check_image_sides(const char* what, int64_t height, int64_t width);

/// Antialiased bilinear scaling to exactly height × width.
/// Throws:   c10::ValueError – as check_image_sides
/// Numerics: equal to Pillow's Image.resize(…, BILINEAR) bit for bit; Pillow 13 and later scale the height first where
///           that is cheaper, which changes values by at most 1 (tests/data/images/transform_test.cpp)
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

/// A part of random size and shape, scaled to height × width: its area is `scale` of the picture's, uniformly, its width
/// over height within `ratio`, log-uniformly. Ten such parts are tried; where none fits, it is the largest in the
/// middle with a ratio that is allowed.
/// Throws:   c10::ValueError – as check_image_sides; not 0 < least ≤ most for scale and ratio
/// Numerics: the cut is scaled as resize does it
/// Ref:      torchvision.transforms.RandomResizedCrop
Transform random_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale = {0.08, 1.0},
                              std::pair<double, double> ratio = {3.0 / 4.0, 4.0 / 3.0});

/// Mirrors left and right with probability `p`.
Transform random_flip(double p = 0.5);

/// 8-bit pictures to floats: (value / 255 - mean) / std for each channel.
/// Numerics: equal to torchvision's to_tensor followed by normalize, bit for bit
class Normalizer {
 public:
  /// Params: mean, std – one value, or one for each channel; empty: 0 and 1
  /// Throws: c10::ValueError – lengths differ, std not positive
  Normalizer(const std::vector<double>& mean, const std::vector<double>& std, int64_t channels);

  /// Writes one picture at `out`: [C, H, W] in this order, or [H, W, C] when `channels_last`.
  /// Params: type – of the values: Float; BFloat16, rounded to the nearest; Byte, which leaves them as they are
  void run(const ImageView& image, void* out, bool channels_last, c10::ScalarType type = c10::ScalarType::Float) const;

 private:
  std::shared_ptr<const kernels::PixelScale> scale_;
};

}  // namespace bellows::data
