#include "bellows/kernels/group_quantization.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bellows/kernels/parallel.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/group_quantization.cpp"
// clang-format off: in this order
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "bellows/kernels/cpu/values_impl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

using CodeFloats = hn::CappedTag<float, 16>;  // the smallest loop step is half a group of 32
using CodeInts = hn::RebindToSigned<CodeFloats>;
using CodeWords = hn::RebindToUnsigned<CodeFloats>;
using CodeBytes = hn::Rebind<uint8_t, CodeFloats>;

constexpr int64_t longest_group = 1024;

template <class T>
GroupRange range_of_group(const T* x, size_t count, int bits) {
  const CodeFloats d;
  const CodeWords words;
  const size_t lanes = hn::Lanes(d);
  auto least = load_values(d, x), most = least;
  auto magnitude = hn::Zero(words);  // ordered like absolute values, with infinity and NaN above all others
  for (size_t i = 0; i < count; i += lanes) {
    const auto v = load_values(d, x + i);
    least = hn::Min(least, v);
    most = hn::Max(most, v);
    magnitude = hn::Max(magnitude, hn::And(hn::BitCast(words, v), hn::Set(words, 0x7fffffff)));
  }
  const uint32_t largest = hn::GetLane(hn::MaxOfLanes(words, magnitude));
  return {hn::GetLane(hn::MinOfLanes(d, least)), hn::GetLane(hn::MaxOfLanes(d, most)), largest < 0x7f800000, bits};
}

HWY_INLINE hn::Vec<CodeWords> scramble_words(hn::Vec<CodeWords> x) {
  const CodeWords d;
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x7feb352d));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, 0x846ca68b));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

/// Codes of one whole group. Calls `store(i, low, high)` with the codes of the values from i and from i + half on.
template <class T, class Store>
HWY_INLINE void codes_of_group(const T* x, size_t half, const GroupRange& range, uint32_t key, Store store) {
  const CodeFloats d;
  const CodeInts ints;
  const CodeWords words;
  const size_t lanes = hn::Lanes(d);
  const auto smallest = hn::Set(d, range.smallest), scale = hn::Set(d, range.scale);
  const auto most = hn::Set(ints, range.levels), above_zero = hn::Set(ints, range.above_zero);
  const auto zero = hn::Set(d, range.zero);
  const auto code = [&](hn::Vec<CodeFloats> v, hn::Vec<CodeWords> random) HWY_ATTR {
    const auto steps = hn::NearestInt(hn::Mul(hn::Sub(v, smallest), scale));
    const auto number = hn::Min(hn::ShiftRight<16>(hn::Add(steps, hn::BitCast(ints, random))), most);
    return hn::IfThenElseZero(hn::RebindMask(ints, hn::Gt(v, zero)), hn::Add(number, above_zero));
  };
  auto counter = hn::Iota(words, key);
  for (size_t i = 0; i < half; i += lanes) {
    const auto random = scramble_words(counter);
    counter = hn::Add(counter, hn::Set(words, static_cast<uint32_t>(lanes)));
    store(i, code(load_values(d, x + i), hn::And(random, hn::Set(words, 0xffff))),
          code(load_values(d, x + half + i), hn::ShiftRight<16>(random)));
  }
}

template <class T>
void quantize_group(const GroupQuantization& args, const T* x, int64_t number) {
  const auto group = static_cast<size_t>(args.group);
  const size_t half = group / 2, bytes = group * static_cast<size_t>(args.bits) / 8;
  const GroupRange range = range_of_group(x, group, args.bits);
  args.ranges[2 * number] = range.smallest;
  args.ranges[2 * number + 1] = range.step;
  uint8_t* codes = args.codes + static_cast<size_t>(number) * bytes;
  if (!range.finite) {
    std::memset(codes, 0, bytes);
    return;
  }
  const CodeBytes d8;
  const uint32_t key = group_key(args.seed, number);
  if (args.bits == 8) {
    codes_of_group(x, half, range, key, [&](size_t i, auto low, auto high) HWY_ATTR {
      hn::StoreU(hn::DemoteTo(d8, low), d8, codes + i);
      hn::StoreU(hn::DemoteTo(d8, high), d8, codes + half + i);
    });
  } else {
    codes_of_group(x, half, range, key, [&](size_t i, auto low, auto high) HWY_ATTR {
      hn::StoreU(hn::DemoteTo(d8, hn::Or(low, hn::ShiftLeft<4>(high))), d8, codes + i);
    });
  }
}

/// Sets the codes after the last value to 0.
inline void clear_padding(const GroupQuantization& args, int64_t number, int64_t count) {
  const int64_t half = args.group / 2;
  uint8_t* codes = args.codes + number * args.group * args.bits / 8;
  if (args.bits == 8) {
    std::fill(codes + count, codes + args.group, uint8_t{0});
  } else {
    for (int64_t i = std::max<int64_t>(0, count - half); i < half; ++i) codes[i] &= i < count ? 0x0f : 0;
  }
}

template <class T>
void quantize_range(const GroupQuantization& args, const T* values, int64_t begin, int64_t end) {
  for (int64_t number = begin; number < end; ++number) {
    const T* x = values + number * args.group;
    const int64_t count = std::min(args.group, args.size - number * args.group);
    if (count == args.group) {
      quantize_group(args, x, number);
      continue;
    }
    T whole[longest_group];  // padded with values that do not change the range; clear_padding() resets their codes
    std::memcpy(whole, x, static_cast<size_t>(count) * sizeof(T));
    std::fill(whole + count, whole + args.group, x[0]);
    quantize_group(args, whole, number);
    clear_padding(args, number, count);
  }
}

template <class T>
void dequantize_group(const GroupQuantization& args, T* x, int64_t number) {
  const CodeFloats d;
  const CodeInts ints;
  const CodeBytes d8;
  const size_t lanes = hn::Lanes(d), group = static_cast<size_t>(args.group), half = group / 2;
  const uint8_t* codes = args.codes + static_cast<size_t>(number) * group * static_cast<size_t>(args.bits) / 8;
  const GroupValues of(args.ranges[2 * number], args.ranges[2 * number + 1]);
  const auto step = hn::Set(d, of.step), base = hn::Set(d, of.base), least = hn::Set(d, of.least);
  const auto zeros = hn::Set(ints, of.zeros);
  const auto value = [&](hn::Vec<CodeInts> code) HWY_ATTR {
    const auto v = hn::MulAdd(hn::ConvertTo(d, code), step, base);
    const auto bounded = hn::IfThenElse(hn::Lt(v, least), least, v);  // NaN stays NaN
    return hn::IfThenElseZero(hn::RebindMask(d, hn::Gt(code, zeros)), bounded);
  };
  if (args.bits == 8) {
    for (size_t i = 0; i < group; i += lanes)
      store_values(d, value(hn::PromoteTo(ints, hn::LoadU(d8, codes + i))), x + i);
  } else {
    for (size_t i = 0; i < half; i += lanes) {
      const auto both = hn::PromoteTo(ints, hn::LoadU(d8, codes + i));
      store_values(d, value(hn::And(both, hn::Set(ints, 15))), x + i);
      store_values(d, value(hn::ShiftRight<4>(both)), x + half + i);
    }
  }
}

template <class T>
void dequantize_range(const GroupQuantization& args, T* values, int64_t begin, int64_t end) {
  for (int64_t number = begin; number < end; ++number) {
    T* x = values + number * args.group;
    const int64_t count = std::min(args.group, args.size - number * args.group);
    if (count == args.group) {
      dequantize_group(args, x, number);
    } else {
      T whole[longest_group];
      dequantize_group(args, whole, number);
      std::memcpy(x, whole, static_cast<size_t>(count) * sizeof(T));
    }
  }
}

void quantize_group_range(const GroupQuantization& args, const void* values, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if constexpr (!std::is_same_v<T, double>) quantize_range(args, static_cast<const T*>(values), begin, end);
  });
}

void dequantize_group_range(const GroupQuantization& args, void* values, int64_t begin, int64_t end) {
  with_values(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if constexpr (!std::is_same_v<T, double>) dequantize_range(args, static_cast<T*>(values), begin, end);
  });
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels {

HWY_EXPORT(quantize_group_range);
HWY_EXPORT(dequantize_group_range);

namespace {

/// Calls work(begin, end) for ranges of groups, each large enough to be worth a task.
template <class Work>
void for_parts(const GroupQuantization& args, Work work) {
  const int64_t part = std::max<int64_t>(1, 32768 / args.group), groups = args.groups();
  parallel_chunks((groups + part - 1) / part, [&](int64_t i) { work(i * part, std::min(groups, (i + 1) * part)); });
}

}  // namespace

void quantize_groups(const GroupQuantization& args, const void* values) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(quantize_group_range);
  for_parts(args, [&](int64_t begin, int64_t end) { kernel(args, values, begin, end); });
}

void dequantize_groups(const GroupQuantization& args, void* values) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(dequantize_group_range);
  for_parts(args, [&](int64_t begin, int64_t end) { kernel(args, values, begin, end); });
}

}  // namespace bellows::kernels
#endif
