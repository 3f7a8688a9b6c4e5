#pragma once

#include "bellows/data/images/transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <tuple>

namespace bellows::data {

/// The channels of one pixel, 0 … 255 until a step changes the range.
using Pixel = std::array<float, 3>;

/// The destination of an image's final values.
struct PixelOutput {
  void* data = nullptr;
  /// Float; BFloat16, rounded to nearest; Byte, rounded and clamped, NaN as 0.
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool channels_last = false;
};

/// The last pass over an image: reads 8-bit pixels and writes the batch's values. It replaces normalize.
/// Threads: called from several threads at once
using PixelPass = std::function<void(const ImageView& image, RandomStream& random, const PixelOutput& out)>;

namespace detail {

inline constexpr int64_t kPixelBlock = 128;
/// A block of pixels with separate channels, so that the compiler can vectorize a step's loop.
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
/// A step that is created for each image.
template <class S>
concept DrawnStep = requires(const S& step, const ImageView& image, RandomStream& random) {
  step.draw(image, random);
};

/// Throws: c10::ValueError if the image does not have one or three channels, or has one channel and a step needs three
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

/// Fuses per-pixel steps at compile time into one pass over each image: from 8-bit pixels through all steps into the
/// batch's memory. A step is a function object or lambda: float(float value), float(float value, int64_t channel), or
/// Pixel(Pixel). Or it has draw(const ImageView&, RandomStream&), which returns one of these for each image.
/// Numerics: bit-identical to running the steps one after the other over all pixels, unless the compiler flags allow
///           contraction of a·b + c across statements (tests/data/images/pixel_chain_test.cpp)
/// Cost:     reads and writes once; 1.5 KiB of intermediate memory
/// Throws:   when run, c10::ValueError if the image does not have one or three channels
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

/// value · factor, clamped to 0 … 255. The factor is drawn from [1 - amount, 1 + amount] for each image.
struct RandomBrightness {
  double amount = 0;
  auto draw(const ImageView&, RandomStream& random) const {
    const auto factor = static_cast<float>(1 + amount * (2 * random.uniform() - 1));
    return [factor](float value) { return std::clamp(value * factor, 0.0f, 255.0f); };
  }
};

/// Scales the distance to the image's mean, clamped to 0 … 255. The factor is drawn from [1 - amount, 1 + amount].
struct RandomContrast {
  double amount = 0;
  auto draw(const ImageView& image, RandomStream& random) const {
    const auto factor = static_cast<float>(1 + amount * (2 * random.uniform() - 1));
    const float mean = mean_of(image);
    return [factor, mean](float value) { return std::clamp((value - mean) * factor + mean, 0.0f, 255.0f); };
  }
  /// The mean of all values.
  static float mean_of(const ImageView& image);
};

/// (value / 255 - mean) / std per channel.
struct Normalize {
  Pixel mean{0, 0, 0}, std{1, 1, 1};
  float operator()(float value, int64_t channel) const {
    const auto c = static_cast<size_t>(channel);
    return (value / 255.0f - mean[c]) / std[c];
  }
};

}  // namespace bellows::data
