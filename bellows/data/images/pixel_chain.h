#pragma once

#include "bellows/data/images/transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <tuple>

namespace bellows::data {

/// The channels of one pixel. Values are in 0 … 255 until a step changes the range.
using Pixel = std::array<float, 3>;

/// The memory for the final values of an image.
struct PixelOutput {
  void* data = nullptr;
  /// Element type: Float, BFloat16 (rounded to nearest) or Byte (rounded and clamped; NaN becomes 0).
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool channels_last = false;
};

/// The last pass over an image. It replaces normalize(), reads 8-bit pixels, and writes the values to the batch.
/// Threads: must be thread-safe, because several threads call the function at the same time
using PixelPass = std::function<void(const ImageView& image, RandomStream& random, const PixelOutput& out)>;

namespace detail {

inline constexpr int64_t kPixelBlock = 128;
/// A block of pixels with separate channels, so that the compiler can vectorize the loop of a step.
using PixelBlock = std::array<std::array<float, kPixelBlock>, 3>;

template <class S>
concept ValueStep = requires(const S& step) {
  { step(0.0f) } -> std::convertible_to<float>;
};
template <class S>
concept ChannelStep = requires(const S& step) {
  { step(0.0f, int64_t{0}) } -> std::convertible_to<float>;
};
template <class S>
concept PixelStep = requires(const S& step, Pixel pixel) {
  { step(pixel) } -> std::convertible_to<Pixel>;
};
/// An object whose draw() returns a step for each image.
template <class S>
concept DrawnStep = requires(const S& step, const ImageView& image, RandomStream& random) {
  step.draw(image, random);
};

/// Checks that the chain supports the image.
/// Params: needs_three – if true, a step needs three channels
/// Throws: c10::ValueError if the image has neither one nor three channels, or if a step needs three channels and the
///         image has one
void check_chain(const ImageView& image, bool needs_three);
/// Loads `count` pixels, starting at (y, x).
void load_block(const ImageView& image, int64_t y, int64_t x, int64_t count, PixelBlock& block);
void store_block(const PixelBlock& block, const ImageView& image, int64_t y, int64_t x, int64_t count,
                 const PixelOutput& out);

template <class S>
void run_step(const S& step, PixelBlock& block, int64_t channels) {
  if constexpr (PixelStep<S>) {
    for (size_t i = 0; i < static_cast<size_t>(kPixelBlock); ++i) {
      const Pixel pixel = step(Pixel{block[0][i], block[1][i], block[2][i]});
      for (size_t c = 0; c < 3; ++c) block[c][i] = pixel[c];
    }
  } else {
    static_assert(ValueStep<S> || ChannelStep<S>,
                  "pixel_chain: a step takes a float, a float and the channel's number, or a Pixel, and returns the "
                  "same; or it has draw(image, random), which makes such a step.");
    for (int64_t c = 0; c < channels; ++c) {
      for (float& value : block[static_cast<size_t>(c)]) {
        if constexpr (ValueStep<S>) {
          value = step(value);
        } else {
          value = step(value, c);
        }
      }
    }
  }
}

template <class S>
auto step_for(const S& step, const ImageView& image, RandomStream& random) {
  if constexpr (DrawnStep<S>) {
    return step.draw(image, random);
  } else {
    return step;
  }
}

}  // namespace detail

/// Fuses per-pixel steps at compile time into one pass over each image. The pass reads 8-bit pixels, applies all steps
/// and writes the results to the memory of the batch.
///
/// A step is a lambda or a function object with one of these signatures: float(float value), float(float value, int64_t
/// channel), or Pixel(Pixel). A step can also be an object with draw(const ImageView&, RandomStream&), which returns
/// such a step for each image.
/// Numerics: bit-identical to running the steps one after another over all pixels, unless compiler flags allow the
///           compiler to fuse a·b + c across statements (tests/data/images/pixel_chain_test.cpp)
/// Cost:     one pass over the image; 1.5 KiB of intermediate memory
/// Throws:   c10::ValueError when the pass runs, if the image has neither one nor three channels
template <class... Steps>
PixelPass pixel_chain(Steps... steps) {
  return
      [steps = std::tuple(std::move(steps)...)](const ImageView& image, RandomStream& random, const PixelOutput& out) {
        // Brace initialization keeps the order of the draws.
        const auto drawn = std::apply(
            [&](const auto&... step) {
              return std::tuple<decltype(detail::step_for(step, image, random))...>{
                  detail::step_for(step, image, random)...};
            },
            steps);
        std::apply(
            [&](const auto&... step) {
              detail::check_chain(image, (detail::PixelStep<std::decay_t<decltype(step)>> || ...));
            },
            drawn);
        detail::PixelBlock block{};
        for (int64_t y = 0; y < image.height; ++y) {
          for (int64_t x = 0; x < image.width; x += detail::kPixelBlock) {
            const int64_t count = std::min(detail::kPixelBlock, image.width - x);
            detail::load_block(image, y, x, count, block);
            std::apply([&](const auto&... step) { (detail::run_step(step, block, image.channels), ...); }, drawn);
            detail::store_block(block, image, y, x, count, out);
          }
        }
      };
}

/// Multiplies all values by a factor and clamps them to 0 … 255. The factor is drawn from [1 - amount, 1 + amount] for
/// each image.
struct RandomBrightness {
  double amount = 0;
  auto draw(const ImageView&, RandomStream& random) const {
    const auto factor = static_cast<float>(1 + amount * (2 * random.uniform() - 1));
    return [factor](float value) { return std::clamp(value * factor, 0.0f, 255.0f); };
  }
};

/// Multiplies the distance of each value from the image's mean by a factor and clamps the values to 0 … 255. The factor
/// is drawn from [1 - amount, 1 + amount] for each image.
struct RandomContrast {
  double amount = 0;
  auto draw(const ImageView& image, RandomStream& random) const {
    const auto factor = static_cast<float>(1 + amount * (2 * random.uniform() - 1));
    const float mean = mean_of(image);
    return [factor, mean](float value) { return std::clamp((value - mean) * factor + mean, 0.0f, 255.0f); };
  }
  /// Returns the mean of all values of the image.
  static float mean_of(const ImageView& image);
};

/// Computes (value / 255 - mean) / std with one mean and std per channel.
struct Normalize {
  Pixel mean{0, 0, 0}, std{1, 1, 1};
  float operator()(float value, int64_t channel) const {
    const auto c = static_cast<size_t>(channel);
    return (value / 255.0f - mean[c]) / std[c];
  }
};

}  // namespace bellows::data
