#include "bellows/kernels/random.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "bellows/kernels/cpu/random_parts.h"
#include "bellows/kernels/parallel.h"

namespace bellows::kernels {

namespace {

constexpr size_t words_at_once = 2 * twister_block;  // stay in the first-level cache
constexpr int64_t block = MersenneTwister::size;

void check_state(const MersenneTwister& state) {
  TORCH_CHECK_VALUE(state.is_valid(),
                    "random_fill: expected a generator state in which the words that are left lie in ", "the block of ",
                    block, " words, got next = ", state.next, ", left = ", state.left, ". Seed the generator again.");
}

bool is_floating(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double || dtype == c10::ScalarType::Half ||
         dtype == c10::ScalarType::BFloat16;
}

bool is_counted(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte || dtype == c10::ScalarType::Char ||
         dtype == c10::ScalarType::Short || dtype == c10::ScalarType::Int || dtype == c10::ScalarType::Long;
}

/// Fills `units` units on this thread. The values are contiguous.
void fill_serially(MersenneTwister& state, const RandomFill& fill, char* out, int64_t units) {
  alignas(64) uint32_t words[words_at_once];
  const RandomUnit unit = unit_of(fill);
  const auto at_once = static_cast<int64_t>(words_at_once / unit.words);
  const auto bytes = static_cast<int64_t>(unit.values * c10::elementSize(fill.dtype));
  for (int64_t done = 0; done < units; done += at_once) {
    const int64_t now = std::min(at_once, units - done);
    random_words(state, words, now * static_cast<int64_t>(unit.words));
    convert_words(fill, words, out + done * bytes, static_cast<size_t>(now));
  }
}

/// Fills many units on several threads. Blocks of words are computed one after another, because each depends on the one
/// before; meanwhile, the other threads compute values.
///
/// The words have positions: 0 is the first word of the block after the state's block, which has negative positions. A
/// *stage* is `stage_blocks` blocks together with the block before, in which its first unit may begin. The tasks are
/// taken in order, and a task waits for earlier ones only, so that any number of threads finishes.
class Pipeline {
 public:
  Pipeline(MersenneTwister& state, const RandomFill& fill, char* out, int64_t units, int64_t threads)
      : state_(state),
        fill_(fill),
        out_(out),
        units_(units),
        width_(static_cast<int64_t>(unit_of(fill).words)),
        unit_bytes_(static_cast<int64_t>(unit_of(fill).values * c10::elementSize(fill.dtype))),
        first_(1 - state.left),
        end_(first_ + units * width_),
        stages_((end_ + stage_words - 1) / stage_words),
        pieces_(threads) {
    for (auto& buffer : buffers_) buffer = std::make_unique_for_overwrite<uint32_t[]>(block + stage_words);
    finished_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(stages_));
  }

  void run() {
    std::memcpy(buffers_[0].get(), state_.words.data(), sizeof state_.words);
    // Order of tasks: the words of stages 0 and 1; then for each stage k its values, and the words of stage k + 2. Words
    // are thus computed before a thread needs them. The threads of oneTBB would not take the tasks in this order.
    parallel_operators(2 + stages_ * (pieces_ + 1), [&](int64_t task) {
      const int64_t stage = (task - 2) / (pieces_ + 1), piece = (task - 2) % (pieces_ + 1);
      if (task >= 2 && piece < pieces_) return convert(stage, piece);
      const int64_t next = task < 2 ? task : stage + 2;
      if (next < stages_) advance(next);
    });
    const int64_t last = (end_ - 1) / block, used = end_ - last * block;  // block and words of it that were drawn
    std::memcpy(state_.words.data(), buffer(stages_ - 1) + (last + 1) * block - (stages_ - 1) * stage_words,
                sizeof state_.words);
    state_.next = static_cast<uint32_t>(used);
    state_.left = static_cast<int>(block + 1 - used);
  }

 private:
  static constexpr int64_t stage_blocks = 64, stage_words = stage_blocks * block;

  uint32_t* buffer(int64_t stage) const { return buffers_[static_cast<size_t>(stage % 3)].get(); }

  static void wait_for(std::atomic<int64_t>& counter, int64_t value) {
    for (int64_t now = counter; now < value; now = counter) counter.wait(now);
  }
  static void add_one(std::atomic<int64_t>& counter) {
    ++counter;
    counter.notify_all();
  }

  void advance(int64_t stage) {
    wait_for(ready_, stage);
    if (stage >= 3) wait_for(finished_[static_cast<size_t>(stage - 3)], pieces_);
    uint32_t* words = buffer(stage);
    if (stage > 0) std::memcpy(words, buffer(stage - 1) + stage_words, sizeof state_.words);
    const int64_t blocks = std::min(stage_blocks, (end_ - stage * stage_words + block - 1) / block);
    twist_blocks(words, static_cast<size_t>(blocks));
    add_one(ready_);
  }

  /// The number of units that end before the end of a stage.
  int64_t units_before_end_of(int64_t stage) const {
    return stage < 0 ? 0 : std::min(units_, ((stage + 1) * stage_words - first_) / width_);
  }

  void convert(int64_t stage, int64_t piece) {
    wait_for(ready_, stage + 1);
    const int64_t from = units_before_end_of(stage - 1), count = units_before_end_of(stage) - from;
    const int64_t begin = from + count * piece / pieces_, end = from + count * (piece + 1) / pieces_;
    const uint32_t* words = buffer(stage) + block + first_ - stage * stage_words;
    alignas(64) uint32_t tempered[words_at_once];
    const int64_t at_once = static_cast<int64_t>(words_at_once) / width_;
    for (int64_t i = begin; i < end; i += at_once) {
      const int64_t now = std::min(at_once, end - i);
      temper_words(words + i * width_, tempered, static_cast<size_t>(now * width_));
      convert_words(fill_, tempered, out_ + i * unit_bytes_, static_cast<size_t>(now));
    }
    add_one(finished_[static_cast<size_t>(stage)]);
  }

  MersenneTwister& state_;
  const RandomFill& fill_;
  char* out_;
  const int64_t units_, width_, unit_bytes_;
  const int64_t first_, end_;  ///< positions
  const int64_t stages_, pieces_;
  std::array<std::unique_ptr<uint32_t[]>, 3> buffers_;
  std::atomic<int64_t> ready_ = 0;                    ///< stages whose words are computed
  std::unique_ptr<std::atomic<int64_t>[]> finished_;  ///< pieces of each stage whose values are computed
};

/// The number of words from which on several threads are used: about 0.1 ms of work, because a busy core can delay a
/// parallel region by more than it saves.
int64_t words_for_threads(const RandomFill& fill) {
  if (fill.law != RandomLaw::normal) return 1 << 19;
  return fill.dtype == c10::ScalarType::Double ? 1 << 14 : 1 << 18;
}

void fill_contiguous(MersenneTwister& state, const RandomFill& fill, char* out, int64_t units) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const bool is_regular = state.next + state.left - 1 == block || state.left == 1;
  if (threads > 1 && is_regular && units >= words_for_threads(fill) / static_cast<int64_t>(unit_of(fill).words)) {
    Pipeline(state, fill, out, units, threads).run();
  } else {
    fill_serially(state, fill, out, units);
  }
}

/// If there are values after the last whole group, libtorch draws their words, too, but then computes the last 16 values
/// from 16 new words.
void fill_normal(MersenneTwister& state, const RandomFill& fill, char* out, int64_t count) {
  const RandomUnit unit = unit_of(fill);
  const auto group = static_cast<int64_t>(unit.values), rest = count % group;
  fill_contiguous(state, fill, out, count / group);
  if (rest == 0) return;
  alignas(64) uint32_t words[32];
  random_words(state, words, rest * static_cast<int64_t>(unit.words) / group);
  const auto bytes = static_cast<int64_t>(c10::elementSize(fill.dtype));
  fill_serially(state, fill, out + (count - group) * bytes, 1);
}

/// Fills values that are not contiguous, by way of a buffer.
void fill_strided(MersenneTwister& state, const RandomFill& fill, char* out, int64_t stride, int64_t count) {
  constexpr int64_t part = 1024;
  alignas(64) char values[part * 8];
  const size_t bytes = c10::elementSize(fill.dtype);
  for (int64_t done = 0; done < count; done += part) {
    const int64_t now = std::min(part, count - done);
    fill_serially(state, fill, values, now);
    for (int64_t i = 0; i < now; ++i) {
      std::memcpy(out + (done + i) * stride, values + static_cast<size_t>(i) * bytes, bytes);
    }
  }
}

template <class P, class T>
void load_probabilities(const RandomBernoulli& args, int64_t first, T* to, int64_t count) {
  const char* from = static_cast<const char*>(args.p) + first * args.p_stride;
  for (int64_t i = 0; i < count; ++i, from += args.p_stride) {
    P value;
    std::memcpy(&value, from, sizeof value);
    to[i] = static_cast<T>(value);
  }
}

template <class T>
void store_flags(const RandomBernoulli& args, int64_t first, const uint8_t* flags, int64_t count) {
  char* to = static_cast<char*>(args.out) + first * args.out_stride;
  const T values[2] = {static_cast<T>(0), static_cast<T>(1)};
  for (int64_t i = 0; i < count; ++i, to += args.out_stride) std::memcpy(to, &values[flags[i]], sizeof(T));
}

void store_flags(const RandomBernoulli& args, int64_t first, const uint8_t* flags, int64_t count) {
  switch (args.dtype) {
    case c10::ScalarType::Double:
      return store_flags<double>(args, first, flags, count);
    case c10::ScalarType::Float:
      return store_flags<float>(args, first, flags, count);
    case c10::ScalarType::Half:
      return store_flags<c10::Half>(args, first, flags, count);
    case c10::ScalarType::BFloat16:
      return store_flags<c10::BFloat16>(args, first, flags, count);
    case c10::ScalarType::Long:
      return store_flags<int64_t>(args, first, flags, count);
    case c10::ScalarType::Int:
      return store_flags<int32_t>(args, first, flags, count);
    case c10::ScalarType::Short:
      return store_flags<int16_t>(args, first, flags, count);
    default:
      return store_flags<uint8_t>(args, first, flags, count);
  }
}

template <class T>
void permute(MersenneTwister& state, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(i);
  constexpr int64_t part = words_at_once;
  alignas(64) uint32_t words[part];
  for (int64_t first = 0; first < count - 1; first += part) {
    const int64_t now = std::min(part, count - 1 - first);
    random_words(state, words, now);
    // All places of a part are computed before the swaps, so that the swaps' loads are independent of the divisions.
    for (int64_t i = 0; i < now; ++i) words[i] %= static_cast<uint32_t>(count - first - i);
    constexpr int64_t ahead = 16;
    for (int64_t i = 0; i < now; ++i) {
      if (i + ahead < now) __builtin_prefetch(out + first + i + ahead + words[i + ahead], 1);
      std::swap(out[first + i], out[first + i + words[i]]);
    }
  }
}

}  // namespace

RandomUnit unit_of(const RandomFill& fill) {
  const bool wide = fill.law == RandomLaw::bernoulli || (fill.law == RandomLaw::integers && fill.wide) ||
                    (fill.law != RandomLaw::integers && fill.dtype == c10::ScalarType::Double);
  const size_t values = fill.law == RandomLaw::normal ? 16 : 1;
  return {values, values * (wide ? 2 : 1)};
}

bool can_random_fill(const RandomFill& fill) {
  const bool floating = is_floating(fill.dtype);
  const bool rounds = has_fused_vectors() || (!fill.fused && fill.dtype != c10::ScalarType::Half);
  switch (fill.law) {
    case RandomLaw::bernoulli:
      return (floating || is_counted(fill.dtype)) && fill.a >= 0 && fill.a <= 1;
    case RandomLaw::uniform:
      return floating && rounds;
    case RandomLaw::normal:
      return floating && rounds && (fill.dtype != c10::ScalarType::Float || fill.fused);
    case RandomLaw::integers:
      return (floating || is_counted(fill.dtype)) && (fill.wide || (fill.range > 0 && fill.range <= uint64_t{1} << 31));
  }
  return false;
}

void random_words(MersenneTwister& state, uint32_t* out, int64_t count) {
  check_state(state);
  const int64_t here = std::min<int64_t>(state.left - 1, count);
  temper_words(state.words.data() + state.next, out, static_cast<size_t>(here));
  state.next += static_cast<uint32_t>(here);
  state.left -= static_cast<int>(here);
  out += here;
  count -= here;
  if (count == 0) return;
  alignas(64) uint32_t words[2 * twister_block];
  std::memcpy(words, state.words.data(), sizeof state.words);
  for (int64_t used = 0; count > 0; out += used, count -= used) {
    if (used > 0) std::memcpy(words, words + twister_block, sizeof state.words);
    twist_blocks(words, 1);
    used = std::min(block, count);
    temper_words(words + twister_block, out, static_cast<size_t>(used));
    state.next = static_cast<uint32_t>(used);
  }
  std::memcpy(state.words.data(), words + twister_block, sizeof state.words);
  state.left = static_cast<int>(block + 1 - state.next);
}

void random_fill(MersenneTwister& state, const RandomFill& fill, void* out, int64_t stride, int64_t count) {
  check_state(state);
  TORCH_CHECK_VALUE(can_random_fill(fill), "random_fill: there is no kernel for values of type ",
                    c10::toString(fill.dtype), " with these arguments. Check with can_random_fill() first.");
  auto* bytes = static_cast<char*>(out);
  const bool is_contiguous = stride == static_cast<int64_t>(c10::elementSize(fill.dtype));
  if (fill.law == RandomLaw::normal) {
    TORCH_CHECK_VALUE(is_contiguous && count >= 16, "random_fill: expected at least 16 contiguous normal values, got ",
                      count, " with a stride of ", stride, " bytes.");
    return fill_normal(state, fill, bytes, count);
  }
  if (is_contiguous) return fill_contiguous(state, fill, bytes, count);
  fill_strided(state, fill, bytes, stride, count);
}

void random_bernoulli(MersenneTwister& state, const RandomBernoulli& args) {
  check_state(state);
  constexpr int64_t part = words_at_once / 2;
  alignas(64) uint32_t words[words_at_once];
  alignas(64) double wide[part];
  alignas(64) float narrow[part];
  uint8_t flags[part];
  for (int64_t first = 0; first < args.count; first += part) {
    const int64_t now = std::min(part, args.count - first);
    const auto size = static_cast<size_t>(now);
    if (args.p_dtype == c10::ScalarType::Double) {
      random_words(state, words, 2 * now);
      load_probabilities<double>(args, first, wide, now);
      compare_wide(words, wide, flags, size);
    } else {
      random_words(state, words, now);
      if (args.p_dtype == c10::ScalarType::Half) {
        load_probabilities<c10::Half>(args, first, narrow, now);
      } else if (args.p_dtype == c10::ScalarType::BFloat16) {
        load_probabilities<c10::BFloat16>(args, first, narrow, now);
      } else {
        load_probabilities<float>(args, first, narrow, now);
      }
      compare_narrow(words, narrow, flags, size);
    }
    store_flags(args, first, flags, now);
  }
}

void random_permutation(MersenneTwister& state, c10::ScalarType dtype, void* out, int64_t count) {
  check_state(state);
  TORCH_CHECK_VALUE((dtype == c10::ScalarType::Long || dtype == c10::ScalarType::Int) && count >= 0 &&
                        count < (int64_t{1} << 32) / 20,
                    "random_permutation: expected fewer than 2^32 / 20 values of type Long or Int, got ", count,
                    " of type ", c10::toString(dtype), ". Use at::randperm.");
  if (dtype == c10::ScalarType::Long) {
    permute(state, static_cast<int64_t*>(out), count);
  } else {
    permute(state, static_cast<int32_t*>(out), count);
  }
}

}  // namespace bellows::kernels
