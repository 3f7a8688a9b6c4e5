#include "bellows/kernels/pixels.h"

#include <algorithm>
#include <cstring>

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/pixels.cpp"
// clang-format off: in this order
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Narrow = hn::Rebind<uint8_t, Floats>;  // as many lanes as Floats has
using FloatVec = hn::Vec<Floats>;

/// x / y for all lanes: an approximate quotient and its error, which fused multiply-add computes exactly. A true
/// division takes several times as long; PixelScale checks that the results are equal.
struct Divider {
  explicit Divider(float y) : divisor(hn::Set(Floats(), y)), inverse(hn::Set(Floats(), 1.0f / y)) {}
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const auto estimate = hn::Mul(x, inverse);
    return hn::MulAdd(hn::NegMulAdd(estimate, divisor, x), inverse, estimate);
  }
  FloatVec divisor, inverse;
};

struct ChannelScale {
  ChannelScale(const PixelScale& scale, size_t channel)
      : by_255(255.0f), by_std(scale.std()[channel]), mean(hn::Set(Floats(), scale.mean()[channel])) {}
  HWY_INLINE FloatVec operator()(hn::Vec<Narrow> values) const {
    const hn::RebindToSigned<Floats> whole;
    return by_std(hn::Sub(by_255(hn::ConvertTo(Floats(), hn::PromoteTo(whole, values))), mean));
  }
  Divider by_255, by_std;
  FloatVec mean;
};

HWY_INLINE void store_floats(FloatVec values, float* out) {
  hn::StoreU(values, Floats(), out);
}

/// Rounds to nearest even; there is no NaN.
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, Floats>> rounded_to_bf16(FloatVec values) {
  const hn::RebindToUnsigned<Floats> bits;
  const auto x = hn::BitCast(bits, values);
  const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(bits, 1));
  const auto high = hn::ShiftRight<16>(hn::Add(x, hn::Add(odd, hn::Set(bits, 0x7fff))));
  return hn::DemoteTo(hn::Rebind<uint16_t, Floats>(), hn::BitCast(hn::RebindToSigned<Floats>(), high));
}
HWY_INLINE void store_floats(FloatVec values, uint16_t* out) {
  hn::StoreU(rounded_to_bf16(values), hn::Rebind<uint16_t, Floats>(), out);
}

HWY_INLINE void store_interleaved(FloatVec r, FloatVec g, FloatVec b, float* out) {
  hn::StoreInterleaved3(r, g, b, Floats(), out);
}
HWY_INLINE void store_interleaved(FloatVec r, FloatVec g, FloatVec b, uint16_t* out) {
  hn::StoreInterleaved3(rounded_to_bf16(r), rounded_to_bf16(g), rounded_to_bf16(b), hn::Rebind<uint16_t, Floats>(),
                        out);
}

bool is_mirrored(const PixelImage& in) {
  return in.pixel_stride < 0;
}

/// The pixel of row y with the lowest address.
const uint8_t* row_start(const PixelImage& in, int64_t y) {
  return in.data + y * in.row_stride + (is_mirrored(in) ? (in.width - 1) * in.pixel_stride : 0);
}

/// Writes the pixels [0, done) of a row of three channels and returns `done`.
template <class T>
int64_t write_rgb_row(const uint8_t* row, int64_t width, bool mirrored, const ChannelScale* scale, T* out,
                      int64_t plane, bool channels_last) {
  const Narrow narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(narrow));
  int64_t x = 0;
  for (; x + lanes <= width; x += lanes) {
    hn::Vec<Narrow> r8, g8, b8;
    hn::LoadInterleaved3(narrow, row + 3 * (mirrored ? width - x - lanes : x), r8, g8, b8);
    auto r = scale[0](r8), g = scale[1](g8), b = scale[2](b8);
    if (mirrored) {
      r = hn::Reverse(Floats(), r);
      g = hn::Reverse(Floats(), g);
      b = hn::Reverse(Floats(), b);
    }
    if (channels_last) {
      store_interleaved(r, g, b, out + 3 * x);
    } else {
      store_floats(r, out + x);
      store_floats(g, out + plane + x);
      store_floats(b, out + 2 * plane + x);
    }
  }
  return x;
}

template <class T>
int64_t write_gray_row(const uint8_t* row, int64_t width, bool mirrored, const ChannelScale* scale, T* out) {
  const Narrow narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(narrow));
  int64_t x = 0;
  for (; x + lanes <= width; x += lanes) {
    const auto values = scale[0](hn::LoadU(narrow, row + (mirrored ? width - x - lanes : x)));
    store_floats(mirrored ? hn::Reverse(Floats(), values) : values, out + x);
  }
  return x;
}

template <class T>
int64_t write_scaled(const PixelImage& in, const PixelScale& scale, bool channels_last, T* out) {
  const int64_t plane = in.height * in.width, c_step = channels_last ? in.channels : 1;
  const ChannelScale scales[3] = {{scale, 0}, {scale, in.channels > 1 ? 1u : 0u}, {scale, in.channels > 1 ? 2u : 0u}};
  int64_t done = 0;
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* row = row_start(in, y);
    T* to = out + y * in.width * c_step;
    done = in.channels == 1 ? write_gray_row(row, in.width, is_mirrored(in), scales, to)
                            : write_rgb_row(row, in.width, is_mirrored(in), scales, to, plane, channels_last);
  }
  return done;
}

/// Each function returns the number of pixels at the left of each row that it wrote.
int64_t write_f32(const PixelImage& in, const PixelScale& scale, bool channels_last, float* out) {
  return write_scaled(in, scale, channels_last, out);
}
int64_t write_bf16(const PixelImage& in, const PixelScale& scale, bool channels_last, uint16_t* out) {
  return write_scaled(in, scale, channels_last, out);
}

#if HWY_TARGET == HWY_SCALAR  // has no 16-byte vectors
int64_t write_rgb_u8(const PixelImage&, bool, uint8_t*) {
  return 0;
}
#else
int64_t write_rgb_u8(const PixelImage& in, bool channels_last, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  const int64_t plane = in.height * in.width, c_step = channels_last ? 3 : 1;
  const auto last = hn::Set(d, 15);
  const auto order = is_mirrored(in) ? hn::Sub(last, hn::Iota(d, 0)) : hn::Iota(d, 0);
  int64_t x = 0;
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* row = row_start(in, y);
    uint8_t* to = out + y * in.width * c_step;
    for (x = 0; x + 16 <= in.width; x += 16) {
      hn::Vec<decltype(d)> r, g, b;
      hn::LoadInterleaved3(d, row + 3 * (is_mirrored(in) ? in.width - x - 16 : x), r, g, b);
      r = hn::TableLookupBytes(r, order);
      g = hn::TableLookupBytes(g, order);
      b = hn::TableLookupBytes(b, order);
      if (channels_last) {
        hn::StoreInterleaved3(r, g, b, d, to + 3 * x);
      } else {
        hn::StoreU(r, d, to + x);
        hn::StoreU(g, d, to + plane + x);
        hn::StoreU(b, d, to + 2 * plane + x);
      }
    }
  }
  return x;
}
#endif

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels {

HWY_EXPORT(write_f32);
HWY_EXPORT(write_bf16);
HWY_EXPORT(write_rgb_u8);

PixelScale::PixelScale(std::vector<float> mean, std::vector<float> std) : mean_(std::move(mean)), std_(std::move(std)) {
  tables_.resize(mean_.size());
  for (size_t c = 0; c < tables_.size(); ++c) {
    for (size_t value = 0; value < 256; ++value)
      tables_[c][value] = (static_cast<float>(value) / 255.0f - mean_[c]) / std_[c];
  }
  if (mean_.size() != 1 && mean_.size() != 3) return;
  std::vector<uint8_t> all(256 * mean_.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i / mean_.size());
  std::vector<float> found(all.size());
  const auto channels = static_cast<int64_t>(mean_.size());
  HWY_DYNAMIC_DISPATCH(write_f32)({all.data(), 1, 256, channels, 256 * channels, channels}, *this, false, found.data());
  exact_ = std::memcmp(found.data(), tables_.data(), found.size() * sizeof(float)) == 0;
}

namespace {

/// Returns the number of pixels at the left of each row that SIMD code wrote.
int64_t write_vectors(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out) {
  if (in.pixel_stride != in.channels && in.pixel_stride != -in.channels) return 0;
  if (type == PixelType::u8) {
    return in.channels == 3 ? HWY_DYNAMIC_DISPATCH(write_rgb_u8)(in, channels_last, static_cast<uint8_t*>(out)) : 0;
  }
  if (!scale.vectors_exact()) return 0;
  if (type == PixelType::f32)
    return HWY_DYNAMIC_DISPATCH(write_f32)(in, scale, channels_last, static_cast<float*>(out));
  return HWY_DYNAMIC_DISPATCH(write_bf16)(in, scale, channels_last, static_cast<uint16_t*>(out));
}

}  // namespace

void write_pixels(const PixelImage& in, const PixelScale& scale, PixelType type, bool channels_last, void* out) {
  const int64_t done = write_vectors(in, scale, type, channels_last, out);
  if (done < in.width) ref::write_pixels(in, scale, type, channels_last, out, done);
}

}  // namespace bellows::kernels
#endif
