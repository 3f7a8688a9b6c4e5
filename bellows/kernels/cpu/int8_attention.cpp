// Attention whose matmuls multiply 8-bit integers. Everything around the matmuls is compiled once per instruction set that
// Highway supports; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/int8_attention.cpp"
#include <hwy/foreach_target.h>
// clang-format off: after foreach_target.h
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "bellows/kernels/cpu/columns_impl.h"
#include "bellows/kernels/cpu/int8_attention_block.h"
#include "bellows/kernels/cpu/int8_tile.h"
#include "bellows/kernels/int8_attention.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::HWY_NAMESPACE {

/// At most 16 lanes, so that a panel consists of whole vectors.
using PanelTag = hn::CappedTag<float, 16>;
using PanelIntegers = hn::RebindToSigned<PanelTag>;

HWY_INLINE hn::Vec<PanelIntegers> integers_of(hn::Vec<PanelTag> x, float inverse) {
  const PanelTag d;
  const auto low = hn::Set(d, -128), scaled = hn::Round(hn::Mul(x, hn::Set(d, inverse)));
  const auto clamped = hn::Min(hn::Max(scaled, low), hn::Set(d, 127));
  return hn::ConvertTo(PanelIntegers(), hn::IfThenElse(hn::IsNaN(scaled), low, clamped));
}

/// Writes a row as 8-bit integers plus `offset`. Values after the last column are 0.
/// Returns: the sum of the integers without the offset
template <class T>
HWY_INLINE int32_t write_integers(const float* from, int64_t columns, float scale, int32_t offset, T* to) {
  const PanelTag d;
  const PanelIntegers d32;
  const hn::Rebind<T, PanelTag> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d32);
  for_columns(d, static_cast<size_t>(columns), [&](auto part, size_t i) HWY_ATTR {
    const auto whole = integers_of(part.load(d, from + i), 1 / scale);
    sum = hn::Add(sum, whole);
    hn::StoreU(hn::DemoteTo(d8, hn::Add(whole, hn::Set(d32, offset))), d8, to + i);
  });
  std::fill(to + columns, to + (columns + lanes - 1) / lanes * lanes, T{0});
  return hn::GetLane(hn::SumOfLanes(d32, sum));
}

/// Packs the keys of a head as a weight [columns, width] (int8_tile.h), with the sums of their integers.
void pack_keys(const Int8Attention& args, int64_t head, const Int8HeadMemory& memory) {
  const int64_t steps = Int8Panel::steps(args.width), bytes = Int8Panel::bytes(args.width);
  const float* const keys = args.key.at(head);
  for (int64_t column = 0; column < args.columns; ++column) {
    memory.key_sums[column] =
        write_integers(keys + column * args.key.row, args.width, args.key_scale, 0, memory.row_integers);
    int8_t* const to =
        memory.keys + column / Int8Panel::columns * bytes + column % Int8Panel::columns * Int8Panel::group;
    for (int64_t step = 0; step < steps; ++step)
      std::copy_n(memory.row_integers + step * Int8Panel::group, Int8Panel::group, to + step * Int8Panel::step_bytes);
  }
}

/// Packs the values of a head as a weight [value_width, columns].
void pack_values(const Int8Attention& args, int64_t head, const Int8HeadMemory& memory) {
  const PanelTag d;
  const PanelIntegers d32;
  const auto byte = hn::Set(d32, 255);
  const int64_t bytes = Int8Panel::bytes(args.columns);
  const float* const values = args.value.at(head);
  for (int64_t step = 0; step < Int8Panel::steps(args.columns); ++step) {
    const int64_t first = step * Int8Panel::group;
    for_columns(d, static_cast<size_t>(args.value_width), [&](auto part, size_t i) HWY_ATTR {
      const auto integers = [&](int64_t key) HWY_ATTR {
        // Powers of keys that do not exist are 0, so any value is right.
        const int64_t row = std::min(first + key, args.columns - 1);
        return hn::And(integers_of(part.load(d, values + row * args.value.row + i), 1 / args.value_scale), byte);
      };
      const auto low = hn::Or(integers(0), hn::ShiftLeft<8>(integers(1))),
                 high = hn::Or(hn::ShiftLeft<16>(integers(2)), hn::ShiftLeft<24>(integers(3)));
      const auto column = static_cast<int64_t>(i);
      int8_t* const to = memory.values + column / Int8Panel::columns * bytes + step * Int8Panel::step_bytes +
                         column % Int8Panel::columns * Int8Panel::group;
      hn::StoreU(hn::Or(low, high), d32, reinterpret_cast<int32_t*>(to));
    });
  }
}

/// 2^x for x from −126 to 0.
HWY_INLINE hn::Vec<PanelTag> power_of_2(hn::Vec<PanelTag> x) {
  const PanelTag d;
  const PanelIntegers d32;
  const auto whole = hn::Round(x), rest = hn::Sub(x, whole);
  auto sum = hn::Set(d, 1.33335581e-3F);
  for (const float factor : {9.61812911e-3F, 5.55041087e-2F, 2.40226507e-1F, 6.93147181e-1F, 1.0F})
    sum = hn::MulAdd(sum, rest, hn::Set(d, factor));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(d32, whole), hn::Set(d32, 127)));
  return hn::Mul(sum, hn::BitCast(d, exponent));
}

/// Turns a row of logits to the base 2 into integer powers. The row is padded to whole panels.
/// Returns: the sum of the powers
HWY_INLINE int32_t integer_powers(const float* logits, int64_t columns, uint8_t* powers) {
  const PanelTag d;
  const PanelIntegers d32;
  const hn::Rebind<uint8_t, PanelTag> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t padded = Int8Panel::count(columns) * Int8Panel::columns;
  auto largest = hn::Set(d, -HUGE_VALF);
  for (int64_t i = 0; i < padded; i += lanes) largest = hn::Max(largest, hn::LoadU(d, logits + i));
  largest = hn::MaxOfLanes(d, largest);
  auto total = hn::Zero(d32);
  for (int64_t i = 0; i < padded; i += lanes) {
    const auto distance = hn::Max(hn::Sub(hn::LoadU(d, logits + i), largest), hn::Set(d, -126));
    const auto power = hn::NearestInt(hn::Mul(power_of_2(distance), hn::Set(d, 255)));
    total = hn::Add(total, power);
    hn::StoreU(hn::DemoteTo(d8, power), d8, powers + i);
  }
  return hn::GetLane(hn::SumOfLanes(d32, total));
}

/// Writes the logits of a panel of keys to the base 2. Those after the last key are −∞.
void write_logits(const Int8Attention& args, int64_t rows, int64_t first, const Int8HeadMemory& memory) {
  const PanelTag d;
  const PanelIntegers d32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, args.query_scale * args.key_scale * args.scale * static_cast<float>(M_LOG2E));
  for (int64_t i = 0; i < Int8Panel::columns; i += lanes) {
    const auto correction =
        hn::ShiftLeft<7>(hn::LoadU(d32, memory.key_sums + first + i));  // queries are shifted by 128
    const auto left = static_cast<size_t>(std::max<int64_t>(0, args.columns - first - i));
    const auto exists = hn::FirstN(d, std::min(left, static_cast<size_t>(lanes)));
    for (int64_t row = 0; row < rows; ++row) {
      const auto sum = hn::Sub(hn::LoadU(d32, memory.sums + row * Int8Panel::columns + i), correction);
      const auto logit = hn::Mul(hn::ConvertTo(d, sum), factor);
      hn::StoreU(hn::IfThenElse(exists, logit, hn::Set(d, -HUGE_VALF)), d,
                 memory.logits + row * memory.logits_row + first + i);
    }
  }
}

/// Writes the results of a panel of value columns.
/// Params: totals – of the powers of each row
void write_results(const Int8Attention& args, int64_t rows, int64_t first, const int32_t* totals, float* result,
                   const int32_t* sums) {
  const PanelTag d;
  const PanelIntegers d32;
  const int64_t columns = std::min(Int8Panel::columns, args.value_width - first);
  for (int64_t row = 0; row < rows; ++row) {
    const auto factor = hn::Set(d, args.value_scale / static_cast<float>(totals[row]));
    float* const to = result + row * args.result.row + first;
    for_columns(d, static_cast<size_t>(columns), [&](auto part, size_t i) HWY_ATTR {
      const auto value = hn::Mul(hn::ConvertTo(d, hn::LoadU(d32, sums + row * Int8Panel::columns + i)), factor);
      part.store(d, value, to + i);
    });
  }
}

/// Computes some rows of a head whose keys and values are packed.
void attend_rows(const Int8Attention& args, int64_t head, int64_t first, int64_t rows, const Int8HeadMemory& memory) {
  const float* const queries = args.query.at(head) + first * args.query.row;
  for (int64_t row = 0; row < rows; ++row) {
    write_integers(queries + row * args.query.row, args.width, args.query_scale, 128,
                   memory.queries + row * memory.queries_row);
  }
  for (int64_t column = 0; column < args.columns; column += Int8Panel::columns) {
    int8_tile(memory.queries, memory.queries_row, rows,
              memory.keys + column / Int8Panel::columns * Int8Panel::bytes(args.width), Int8Panel::steps(args.width),
              memory.sums);
    write_logits(args, rows, column, memory);
  }
  int32_t totals[int8_tile_rows];
  for (int64_t row = 0; row < rows; ++row) {
    totals[row] =
        integer_powers(memory.logits + row * memory.logits_row, args.columns, memory.powers + row * memory.powers_row);
  }
  float* const result = args.result.at(head) + first * args.result.row;
  for (int64_t column = 0; column < args.value_width; column += Int8Panel::columns) {
    int8_tile(memory.powers, memory.powers_row, rows,
              memory.values + column / Int8Panel::columns * Int8Panel::bytes(args.columns),
              Int8Panel::steps(args.columns), memory.sums);
    write_results(args, rows, column, totals, result, memory.sums);
  }
}

void attend(const Int8Attention& args, int64_t head, const Int8HeadMemory& memory) {
  pack_keys(args, head, memory);
  pack_values(args, head, memory);
  const int64_t tiles = (args.rows + int8_tile_rows - 1) / int8_tile_rows;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = args.rows * i / tiles;
    attend_rows(args, head, first, args.rows * (i + 1) / tiles - first, memory);
  }
}

}  // namespace bellows::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "bellows/kernels/parallel.h"
#include "bellows/kernels/scratch.h"

namespace bellows::kernels {

HWY_EXPORT(attend);

namespace {

/// Divides the memory of a thread's buffer into aligned parts.
class HeadParts {
 public:
  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return memory_ ? reinterpret_cast<T*>(memory_ + at) : nullptr;
  }
  int64_t used() const { return used_; }
  void set(float* memory) {
    memory_ = reinterpret_cast<char*>(memory);
    used_ = 0;
  }

 private:
  char* memory_ = nullptr;
  int64_t used_ = 0;
};

Int8HeadMemory memory_of(const Int8Attention& args, HeadParts& parts) {
  const auto whole = [](int64_t count) { return (count + 63) / 64 * 64; };  // rows of whole vectors
  Int8HeadMemory made{
      .queries_row = whole(args.width), .logits_row = whole(args.columns), .powers_row = whole(args.columns)};
  made.keys = parts.take<int8_t>(Int8Panel::count(args.columns) * Int8Panel::bytes(args.width));
  made.values = parts.take<int8_t>(Int8Panel::count(args.value_width) * Int8Panel::bytes(args.columns));
  made.key_sums = parts.take<int32_t>(whole(args.columns));
  made.row_integers = parts.take<int8_t>(whole(args.width));
  made.queries = parts.take<uint8_t>(int8_tile_rows * made.queries_row);
  made.sums = parts.take<int32_t>(int8_tile_rows * Int8Panel::columns);
  made.logits = parts.take<float>(int8_tile_rows * made.logits_row);
  made.powers = parts.take<uint8_t>(int8_tile_rows * made.powers_row);
  return made;
}

Int8HeadMemory thread_memory(const Int8Attention& args) {
  HeadParts parts;
  memory_of(args, parts);
  parts.set(thread_scratch(static_cast<size_t>(parts.used()) / sizeof(float)));
  return memory_of(args, parts);
}

}  // namespace

void int8_attention(const Int8Attention& args) {
  if (args.batch <= 0 || args.rows <= 0) return;
  constexpr int64_t task_products = 1 << 21;
  const int64_t each = std::max<int64_t>(1, args.rows * args.columns * (args.width + args.value_width + 64)),
                together = std::clamp<int64_t>(task_products / each, 1, args.batch);
  parallel_chunks((args.batch + together - 1) / together, [&](int64_t task) {
    const Int8HeadMemory memory = thread_memory(args);
    for (int64_t head = task * together; head < std::min(args.batch, (task + 1) * together); ++head)
      HWY_DYNAMIC_DISPATCH(attend)(args, head, memory);
  });
}

}  // namespace bellows::kernels

#endif  // HWY_ONCE
