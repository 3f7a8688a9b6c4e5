#include "bellows/kernels/cpu/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bellows/kernels/parallel.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/grad_norm.cpp"
// clang-format off: in this order
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/cache_control.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using F32 = hn::Rebind<float, F64>;  // as many lanes as F64 has
using Sum = hn::Vec<F64>;

HWY_INLINE Sum load_wide(const double* from, Type) {
  return hn::LoadU(F64(), from);
}
HWY_INLINE Sum load_wide(const float* from, Type) {
  return hn::PromoteTo(F64(), hn::LoadU(F32(), from));
}
HWY_INLINE Sum load_wide(const uint16_t* from, Type type) {
  const hn::Rebind<uint16_t, F64> bits;
  const hn::Rebind<uint32_t, F64> bits32;
  const auto loaded = hn::LoadU(bits, from);
  if (type == Type::bf16) {
    return hn::PromoteTo(F64(), hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(bits32, loaded))));
  }
  const hn::Rebind<hwy::float16_t, F64> half;
  return hn::PromoteTo(F64(), hn::PromoteTo(F32(), hn::BitCast(half, loaded)));
}

struct AddAbs {
  HWY_INLINE Sum operator()(Sum sum, Sum x) const { return hn::Add(sum, hn::Abs(x)); }
};
struct AddSquare {
  HWY_INLINE Sum operator()(Sum sum, Sum x) const { return hn::MulAdd(x, x, sum); }
};
/// Without their sign, doubles have the same order as their bits, and NaN is above infinity.
struct MaxAbs {
  HWY_INLINE Sum operator()(Sum sum, Sum x) const {
    const hn::RebindToSigned<F64> bits;
    return hn::BitCast(F64(), hn::Max(hn::BitCast(bits, sum), hn::BitCast(bits, hn::Abs(x))));
  }
};

double total(Sum sum, AddAbs) {
  return hn::GetLane(hn::SumOfLanes(F64(), sum));
}
double total(Sum sum, AddSquare) {
  return hn::GetLane(hn::SumOfLanes(F64(), sum));
}
double total(Sum sum, MaxAbs) {
  double lanes[hn::MaxLanes(F64())], result = 0;
  hn::StoreU(sum, F64(), lanes);
  for (size_t i = 0; i < hn::Lanes(F64()); ++i) {
    if (lanes[i] > result || std::isnan(lanes[i])) result = lanes[i];
  }
  return result;
}

template <class T, class Op>
double reduce(const T* x, size_t n, Type type, Op op) {
  const size_t lanes = hn::Lanes(F64());
  // The hardware prefetcher does not fetch far enough ahead: with this distance, one core read 25 % more bytes per
  // second.
  constexpr size_t ahead_bytes = 8192, line_bytes = 64;
  // Four partial sums, because an addition takes four cycles.
  Sum s0 = hn::Zero(F64()), s1 = s0, s2 = s0, s3 = s0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const char* const ahead = reinterpret_cast<const char*>(x + i) + ahead_bytes;
    for (size_t line = 0; line < 4 * lanes * sizeof(T); line += line_bytes) hwy::Prefetch(ahead + line);
    s0 = op(s0, load_wide(x + i, type));
    s1 = op(s1, load_wide(x + i + lanes, type));
    s2 = op(s2, load_wide(x + i + 2 * lanes, type));
    s3 = op(s3, load_wide(x + i + 3 * lanes, type));
  }
  for (; i < n; i += lanes) {
    T rest[hn::MaxLanes(F64())] = {};  // zeros change no sum
    std::memcpy(rest, x + i, std::min(lanes, n - i) * sizeof(T));
    s0 = op(s0, load_wide(rest, type));
  }
  if constexpr (std::is_same_v<Op, MaxAbs>) return total(op(op(s0, s1), op(s2, s3)), op);
  return total(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), op);
}

template <class Op>
double reduce_range(const NormTensor& t, size_t begin, size_t end, Op op) {
  if (t.type == Type::f64) return reduce(static_cast<const double*>(t.data) + begin, end - begin, t.type, op);
  if (t.type == Type::f32) return reduce(static_cast<const float*>(t.data) + begin, end - begin, t.type, op);
  return reduce(static_cast<const uint16_t*>(t.data) + begin, end - begin, t.type, op);
}

double norm_range(const NormTensor& t, NormSum what, size_t begin, size_t end) {
  switch (what) {
    case NormSum::abs:
      return reduce_range(t, begin, end, AddAbs());
    case NormSum::squares:
      return reduce_range(t, begin, end, AddSquare());
    default:
      return reduce_range(t, begin, end, MaxAbs());
  }
}

template <class T>
void multiply(T* x, size_t n, T factor) {
  const hn::ScalableTag<T> d;
  const auto factors = hn::Set(d, factor);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factors), d, x + i);
  for (; i < n; ++i) x[i] *= factor;
}

void scale_range(const ScaleTensor& t, double factor, size_t begin, size_t end) {
  if (t.type == Type::f64) return multiply(static_cast<double*>(t.data) + begin, end - begin, factor);
  multiply(static_cast<float*>(t.data) + begin, end - begin, static_cast<float>(factor));
}

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels::cpu {

HWY_EXPORT(norm_range);
HWY_EXPORT(scale_range);

namespace {

constexpr int64_t norm_chunk_size = 32768;  // elements

/// A part of one tensor.
template <class Tensor>
struct NormChunk {
  const Tensor* tensor;
  int64_t begin, end;
};

template <class Tensor>
std::vector<NormChunk<Tensor>> norm_chunks(std::span<const Tensor> tensors) {
  std::vector<NormChunk<Tensor>> chunks;
  for (const Tensor& tensor : tensors) {
    for (int64_t begin = 0; begin < tensor.size; begin += norm_chunk_size)
      chunks.push_back({&tensor, begin, std::min(begin + norm_chunk_size, tensor.size)});
  }
  return chunks;
}

}  // namespace

double norm_sum(std::span<const NormTensor> tensors, NormSum what) {
  const auto chunks = norm_chunks(tensors);
  const auto kernel = HWY_DYNAMIC_DISPATCH(norm_range);
  std::vector<double> partial(chunks.size());
  parallel_chunks(static_cast<int64_t>(chunks.size()), [&](int64_t i) {
    const auto& chunk = chunks[static_cast<size_t>(i)];
    partial[static_cast<size_t>(i)] =
        kernel(*chunk.tensor, what, static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.end));
  });
  double result = 0;
  for (const double x : partial) {
    if (what != NormSum::max_abs)
      result += x;
    else if (x > result || std::isnan(x))
      result = x;
  }
  return result;
}

void scale(std::span<const ScaleTensor> tensors, double factor) {
  const auto chunks = norm_chunks(tensors);
  const auto kernel = HWY_DYNAMIC_DISPATCH(scale_range);
  parallel_chunks(static_cast<int64_t>(chunks.size()), [&](int64_t i) {
    const auto& chunk = chunks[chunks.size() - 1 - static_cast<size_t>(i)];
    kernel(*chunk.tensor, factor, static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.end));
  });
}

}  // namespace bellows::kernels::cpu
#endif
