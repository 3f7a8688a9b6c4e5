#include "bellows/kernels/resample.h"

#include <algorithm>
#include <cstring>

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/resample.cpp"
// clang-format off: in this order
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

// Weights are not negative and add up to 2^22 within rounding. Sums therefore fit in 8 bits after the shift, and the
// clamping of the definition has no effect.

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // has no 16-byte vectors
int64_t rows_resampled(const ResamplePixels&, const ResampleAxis&, uint8_t*, int64_t) {
  return 0;
}
#else
// Along rows, each position has its own weights. A vector holds one position of several rows, 16 bytes per row. These
// are the channels of four pixels; each tap uses one pixel, with one channel per lane.
constexpr size_t rows_at_once = HWY_MAX_BYTES >= 64 ? 4 : HWY_MAX_BYTES >= 32 ? 2 : 1;
constexpr int64_t row_load = 16, taps_a_load = 4;
using Bytes = hn::FixedTag<uint8_t, 16 * rows_at_once>;
using Lanes = hn::FixedTag<int32_t, 4 * rows_at_once>;

template <size_t rows>
HWY_INLINE hn::Vec<hn::FixedTag<uint8_t, 16 * rows> > load_rows(const uint8_t* from, int64_t stride) {
  const hn::FixedTag<uint8_t, 16 * rows> d;
  if constexpr (rows == 1) {
    return hn::LoadU(d, from);
  } else {
    constexpr auto half = static_cast<int64_t>(rows / 2);
    return hn::Combine(d, load_rows<rows / 2>(from + half * stride, stride), load_rows<rows / 2>(from, stride));
  }
}

/// Shuffle that puts the channels of pixel `tap` of a load into byte 0 of each lane; the other bytes become 0.
template <int channels>
HWY_INLINE hn::Vec<Bytes> spread(int tap) {
  HWY_ALIGN uint8_t places[16];
  for (int i = 0; i < 16; ++i)
    places[i] = i % 4 == 0 && i / 4 < channels ? static_cast<uint8_t>(tap * channels + i / 4) : 0x80;
  return hn::LoadDup128(Bytes(), places);
}

/// Rows [0, rows_at_once), starting at `in`.
template <int channels>
void resample_some_rows(const uint8_t* in, int64_t in_stride, const ResampleAxis& axis, uint8_t* out,
                        int64_t out_stride) {
  const Lanes d;
  const auto p0 = spread<channels>(0), p1 = spread<channels>(1), p2 = spread<channels>(2), p3 = spread<channels>(3);
  const auto half = hn::Set(d, 1 << (kResampleBits - 1));
  for (int64_t x = 0; x < axis.count; ++x) {
    const uint8_t* from = in + axis.first[x] * channels;
    const int32_t* weights = axis.weights + x * axis.room;
    auto even = half, odd = hn::Zero(d);
    for (int64_t k = 0; k < axis.taps[x]; k += taps_a_load, from += taps_a_load * channels, weights += taps_a_load) {
      const auto pixels = load_rows<rows_at_once>(from, in_stride);
      const auto product = [&](hn::Vec<Bytes> places, int32_t weight) HWY_ATTR {
        return hn::Mul(hn::BitCast(d, hn::TableLookupBytesOr0(pixels, places)), hn::Set(d, weight));
      };
      even = hn::Add(even, hn::Add(product(p0, weights[0]), product(p2, weights[2])));
      odd = hn::Add(odd, hn::Add(product(p1, weights[1]), product(p3, weights[3])));
    }
    const hn::Rebind<uint8_t, Lanes> narrow;
    HWY_ALIGN uint8_t values[4 * rows_at_once];
    hn::Store(hn::DemoteTo(narrow, hn::ShiftRight<kResampleBits>(hn::Add(even, odd))), narrow, values);
    for (size_t r = 0; r < rows_at_once; ++r)
      std::memcpy(out + static_cast<int64_t>(r) * out_stride + x * channels, values + 4 * r, 4);
  }
}

/// Returns the number of rows written: those for which 16-byte loads do not read beyond the image's last byte.
template <int channels>
int64_t resample_rows_of(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride) {
  constexpr auto step = static_cast<int64_t>(rows_at_once);
  int64_t reach = 0;
  for (int64_t x = 0; x < axis.count; ++x) {
    const int64_t last_load = axis.first[x] + std::max(axis.taps[x] - 1, 0) / taps_a_load * taps_a_load;
    reach = std::max(reach, last_load * channels + row_load);
  }
  const int64_t over = reach - in.width * channels;  // beyond the end of its own row
  const int64_t unsafe = over <= 0 ? 0 : (over + in.row_stride - 1) / in.row_stride;
  const int64_t rows = in.height - unsafe;
  if (rows < step) return 0;
  for (int64_t y = 0; y < rows; y += step) {
    const int64_t at = std::min(y, rows - step);  // the last step overlaps the previous one
    resample_some_rows<channels>(in.data + at * in.row_stride, in.row_stride, axis, out + at * out_stride, out_stride);
  }
  return rows;
}

int64_t rows_resampled(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride) {
  if (in.channels == 3) return resample_rows_of<3>(in, axis, out, out_stride);
  if (in.channels == 4) return resample_rows_of<4>(in, axis, out, out_stride);
  return 0;
}
#endif

// Along columns, all pixels of a row have the same weights.
using Wide = hn::ScalableTag<int32_t>;

template <size_t vectors>
HWY_INLINE void resample_column_block(const uint8_t* in, int64_t stride, const int32_t* weights, int64_t taps,
                                      uint8_t* out) {
  const Wide d;
  const hn::Rebind<uint8_t, Wide> narrow;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<Wide> sums[vectors];
  for (auto& sum : sums) sum = hn::Set(d, 1 << (kResampleBits - 1));
  for (int64_t k = 0; k < taps; ++k, in += stride) {
    const auto weight = hn::Set(d, weights[k]);
    for (size_t v = 0; v < vectors; ++v) {
      const auto pixels = hn::PromoteTo(d, hn::LoadU(narrow, in + v * lanes));
      sums[v] = hn::Add(sums[v], hn::Mul(pixels, weight));
    }
  }
  for (size_t v = 0; v < vectors; ++v)
    hn::StoreU(hn::DemoteTo(narrow, hn::ShiftRight<kResampleBits>(sums[v])), narrow, out + v * lanes);
}

/// Returns the number of values of each row that it wrote.
int64_t columns_resampled(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out) {
  constexpr size_t many = 4;
  const auto lanes = static_cast<int64_t>(hn::Lanes(Wide()));
  const int64_t values = in.width * in.channels, done = values / lanes * lanes;
  for (int64_t y = 0; y < axis.count; ++y, out += values) {
    const uint8_t* from = in.data + axis.first[y] * in.row_stride;
    const int32_t* weights = axis.weights + y * axis.room;
    int64_t i = 0;
    for (; i + static_cast<int64_t>(many) * lanes <= values; i += static_cast<int64_t>(many) * lanes)
      resample_column_block<many>(from + i, in.row_stride, weights, axis.taps[y], out + i);
    for (; i < done; i += lanes) resample_column_block<1>(from + i, in.row_stride, weights, axis.taps[y], out + i);
  }
  return done;
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels {

HWY_EXPORT(rows_resampled);
HWY_EXPORT(columns_resampled);

void resample_rows(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out, int64_t out_stride) {
  const int64_t done = HWY_DYNAMIC_DISPATCH(rows_resampled)(in, axis, out, out_stride);
  const ResamplePixels rest{in.data + done * in.row_stride, in.height - done, in.width, in.channels, in.row_stride};
  ref::resample_rows(rest, axis, out + done * out_stride, out_stride);
}

void resample_columns(const ResamplePixels& in, const ResampleAxis& axis, uint8_t* out) {
  const int64_t done = HWY_DYNAMIC_DISPATCH(columns_resampled)(in, axis, out);
  ref::resample_columns(in, axis, out, done);
}

}  // namespace bellows::kernels
#endif
