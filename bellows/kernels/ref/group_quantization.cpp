#include "bellows/kernels/group_quantization.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace bellows::kernels {

GroupRange::GroupRange(float least, float most, bool all_finite, int bits) : smallest(least) {
  above_zero = least == 0 ? 1 : 0;
  zero = above_zero ? 0 : -std::numeric_limits<float>::infinity();
  levels = (1 << bits) - 1 - above_zero;
  const float width = most - least;
  finite = all_finite && std::isfinite(width);
  if (!finite) {
    smallest = step = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  scale = static_cast<float>(levels) * 65536.0F / width;
  if (std::isfinite(scale)) {
    step = width / static_cast<float>(levels);
  } else {
    scale = 0;  // all values are (almost) equal
  }
}

GroupValues::GroupValues(float smallest, float width_of_step)
    : step(width_of_step), base(smallest), least(-std::numeric_limits<float>::infinity()), zeros(-1) {
  if (smallest != 0) return;
  base = -step;
  least = step / 65536;
  zeros = 0;
}

namespace ref {

namespace {

/// lowbias32 of github.com/skeeto/hash-prospector.
uint32_t scramble32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

float code_value_at(c10::ScalarType dtype, const void* values, int64_t i) {
  if (dtype == c10::ScalarType::BFloat16) return static_cast<const c10::BFloat16*>(values)[i];
  if (dtype == c10::ScalarType::Half) return static_cast<const c10::Half*>(values)[i];
  return static_cast<const float*>(values)[i];
}

void put_code_value(c10::ScalarType dtype, void* values, int64_t i, float value) {
  if (dtype == c10::ScalarType::BFloat16) {
    static_cast<c10::BFloat16*>(values)[i] = value;
  } else if (dtype == c10::ScalarType::Half) {
    static_cast<c10::Half*>(values)[i] = value;
  } else {
    static_cast<float*>(values)[i] = value;
  }
}

GroupRange range_of(const GroupQuantization& args, const void* values, int64_t begin, int64_t end) {
  float least = code_value_at(args.dtype, values, begin), most = least;
  bool finite = true;
  for (int64_t i = begin; i < end; ++i) {
    const float x = code_value_at(args.dtype, values, i);
    finite = finite && std::isfinite(x);
    least = std::min(least, x);
    most = std::max(most, x);
  }
  return {least, most, finite, args.bits};
}

uint32_t code_of(const GroupQuantization& args, const GroupRange& range, float x, int64_t group, int64_t i) {
  if (!range.finite) return 0;
  const int64_t half = args.group / 2;
  const uint32_t random = scramble32(group_key(args.seed, group) + static_cast<uint32_t>(i % half));
  const uint32_t bits16 = i < half ? random & 0xffff : random >> 16;
  const auto steps = static_cast<uint32_t>(std::nearbyint((x - range.smallest) * range.scale));
  const uint32_t code = std::min((steps + bits16) >> 16, static_cast<uint32_t>(range.levels));
  return x > range.zero ? code + static_cast<uint32_t>(range.above_zero) : 0;
}

}  // namespace

void quantize_groups(const GroupQuantization& args, const void* values) {
  std::fill_n(args.codes, args.codes_bytes(), uint8_t{0});
  for (int64_t group = 0; group < args.groups(); ++group) {
    const int64_t begin = group * args.group, end = std::min(begin + args.group, args.size);
    const GroupRange range = range_of(args, values, begin, end);
    args.ranges[2 * group] = range.smallest;
    args.ranges[2 * group + 1] = range.step;
    uint8_t* codes = args.codes + begin * args.bits / 8;
    for (int64_t i = 0; i < end - begin; ++i) {
      const uint32_t code = code_of(args, range, code_value_at(args.dtype, values, begin + i), group, i);
      const int64_t half = args.group / 2;
      if (args.bits == 8) {
        codes[i] = static_cast<uint8_t>(code);
      } else {
        codes[i % half] |= static_cast<uint8_t>(i < half ? code : code << 4);
      }
    }
  }
}

void dequantize_groups(const GroupQuantization& args, void* values) {
  for (int64_t n = 0; n < args.size; ++n) {
    const int64_t group = n / args.group, i = n % args.group, half = args.group / 2;
    const uint8_t* codes = args.codes + group * args.group * args.bits / 8;
    const int code = args.bits == 8 ? codes[i] : (i < half ? codes[i] & 15 : codes[i - half] >> 4);
    const GroupValues of(args.ranges[2 * group], args.ranges[2 * group + 1]);
    const float value = static_cast<float>(code) * of.step + of.base;
    put_code_value(args.dtype, values, n, code <= of.zeros ? 0 : value < of.least ? of.least : value);
  }
}

}  // namespace ref
}  // namespace bellows::kernels
