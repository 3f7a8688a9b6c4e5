#include "bellows/nn/fast_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/random_native.h>
#include <ATen/ops/randperm_native.h>
#include <ATen/ops/uniform_native.h>
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>

#include "bellows/kernels/random.h"
#include "bellows/tap/random_operators.h"

namespace bellows::nn {

namespace {

using kernels::MersenneTwister;
using kernels::RandomFill;
using kernels::RandomLaw;
using Generator = tap::RandomOperators::Generator;

/// Copying the state of the generator costs as much as some values.
constexpr int64_t fewest_values = 128;

std::atomic<int64_t> guards = 0, performed_calls = 0;

/// Returns null for generators of other devices, for which libtorch reports the error.
at::CPUGeneratorImpl* cpu_generator(const Generator& given) {
  const at::Generator& generator =
      given.has_value() && given->defined() ? *given : at::detail::getDefaultCPUGenerator();
  return dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

MersenneTwister state_of(const at::mt19937_data_pod& data) {
  return {.words = data.state_, .left = data.left_, .next = data.next_};
}

/// Calls draw(state) with the state of the generator and stores the new state, under the generator's lock. Returns
/// whether that was possible.
template <class Draw>
bool with_state(at::CPUGeneratorImpl& generator, Draw draw) {
  const std::lock_guard<std::mutex> lock(generator.mutex_);
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  MersenneTwister state = state_of(data);
  if (!data.seeded_ || !state.is_valid()) return false;
  draw(state);
  data.state_ = state.words;
  data.left_ = state.left;
  data.next_ = state.next;
  engine.set_data(data);
  generator.set_engine(engine);
  performed_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

/// Calls action(pointers, strides, count) for all rows, in the order in which libtorch's serial loops visit them.
template <size_t tensors, class Action>
void for_rows(at::TensorIteratorBase& values, Action action) {
  values.serial_for_each(
      [&](char** data, const int64_t* strides, int64_t count, int64_t rows) {
        std::array<char*, tensors> row;
        for (int64_t i = 0; i < rows; ++i) {
          for (size_t t = 0; t < tensors; ++t) row[t] = data[t] + i * strides[tensors + t];
          action(row, strides, count);
        }
      },
      {0, values.numel()});
}

void fill_values(MersenneTwister& state, const RandomFill& fill, at::Tensor& self) {
  if (self.is_contiguous()) {
    return kernels::random_fill(state, fill, self.mutable_data_ptr(), self.element_size(), self.numel());
  }
  auto values = at::TensorIterator::borrowing_nullary_op(self);
  for_rows<1>(values, [&](auto row, const int64_t* strides, int64_t count) {
    kernels::random_fill(state, fill, row[0], strides[0], count);
  });
}

void fill_bernoulli(MersenneTwister& state, at::Tensor& self, const at::Tensor& p) {
  const auto expanded = at::expand_inplace(self, p);
  auto values =
      at::TensorIteratorConfig().add_output(self).add_const_input(*expanded).check_all_same_dtype(false).build();
  for_rows<2>(values, [&](auto row, const int64_t* strides, int64_t count) {
    kernels::random_bernoulli(state, {.dtype = self.scalar_type(),
                                      .out = row[0],
                                      .out_stride = strides[0],
                                      .p_dtype = p.scalar_type(),
                                      .p = row[1],
                                      .p_stride = strides[1],
                                      .count = count});
  });
}

// libtorch's own kernels, for the comparison.

void fill_by_libtorch(const RandomFill& fill, at::Tensor& self, const at::Generator& generator) {
  switch (fill.law) {
    case RandomLaw::bernoulli:
      at::native::bernoulli_(self, fill.a, generator);
      return;
    case RandomLaw::uniform:
      at::native::uniform_(self, fill.a, fill.b, generator);
      return;
    case RandomLaw::normal:
      at::native::normal_(self, fill.a, fill.b, generator);
      return;
    case RandomLaw::integers:
      if (fill.range <= 100 && self.scalar_type() != at::kBool) {
        at::native::random_(self, fill.base, fill.base + static_cast<int64_t>(fill.range), generator);
      } else {
        at::native::random_(self, generator);
      }
  }
}

/// Whether two kernels fill the same tensor and leave the same state, from the same seed.
template <class Theirs, class Ours>
bool same_result(at::ScalarType dtype, Theirs theirs, Ours ours) {
  constexpr int64_t count = 1337;  // several blocks of the generator, and not a multiple of 16
  const at::Generator generator = at::detail::createCPUGenerator(19937);
  const auto state_now = [&] { return state_of(generator.get<at::CPUGeneratorImpl>()->engine().data()); };
  at::Tensor x = at::empty({count}, dtype), y = at::empty({count}, dtype);
  MersenneTwister state = state_now();
  theirs(x, generator);
  ours(state, y);
  const MersenneTwister expected = state_now();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0 && state.words == expected.words &&
         state.left == expected.left && state.next == expected.next;
}

enum class Match : uint8_t { unknown, none, fused, separate };

/// How our kernels have to round so that they give libtorch's values.
Match matching_rounding(const RandomFill& fill) {
  RandomFill sample = fill;
  if (fill.law == RandomLaw::bernoulli) sample.a = 0.3;
  if (fill.law == RandomLaw::uniform || fill.law == RandomLaw::normal) sample.a = 0.1, sample.b = 0.77;
  for (const Match match : {Match::fused, Match::separate}) {
    sample.fused = match == Match::fused;
    if (kernels::can_random_fill(sample) &&
        same_result(
            fill.dtype, [&](at::Tensor& x, const at::Generator& generator) { fill_by_libtorch(sample, x, generator); },
            [&](MersenneTwister& state, at::Tensor& y) { fill_values(state, sample, y); })) {
      return match;
    }
  }
  return Match::none;
}

Match matching_probabilities(at::ScalarType dtype) {
  const at::Tensor p = at::arange(1337, at::kFloat).div_(1337).to(dtype);
  const bool same = same_result(
      at::kFloat, [&](at::Tensor& x, const at::Generator& generator) { at::native::bernoulli_(x, p, generator); },
      [&](MersenneTwister& state, at::Tensor& y) { fill_bernoulli(state, y, p); });
  return same ? Match::fused : Match::none;
}

Match matching_permutation(at::ScalarType dtype) {
  const bool same = same_result(
      dtype,
      [](at::Tensor& x, const at::Generator& generator) { at::native::randperm_out_cpu(x.numel(), generator, x); },
      [&](MersenneTwister& state, at::Tensor& y) {
        kernels::random_permutation(state, dtype, y.mutable_data_ptr(), y.numel());
      });
  return same ? Match::fused : Match::none;
}

/// The comparisons that were made. Racing threads may compare twice, with the same result.
class Matches {
 public:
  enum Kind : uint8_t { bernoulli, uniform, normal, integers, any_integer, probabilities, permutation, kinds };

  template <class Compare>
  Match of(Kind kind, at::ScalarType dtype, Compare compare) {
    std::atomic<Match>& match = matches_[kind][static_cast<size_t>(dtype)];
    if (match == Match::unknown) {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      const at::DisableRecordFunctionGuard unobserved;
      match = compare();
    }
    return match;
  }

 private:
  std::array<std::array<std::atomic<Match>, static_cast<size_t>(at::ScalarType::NumOptions)>, kinds> matches_{};
};

Matches matches;

bool can_fill(const at::Tensor& self) {
  return guards.load(std::memory_order_relaxed) > 0 && self.numel() >= fewest_values && self.device().is_cpu() &&
         self.layout() == at::kStrided && !self.is_complex() && at::has_internal_overlap(self) != at::MemOverlap::Yes;
}

/// Performs the operator if libtorch's values are known to be the same.
bool draw(at::Tensor& self, RandomFill fill, Matches::Kind kind, const Generator& given) {
  fill.dtype = self.scalar_type();
  if (!can_fill(self) || !kernels::can_random_fill(fill)) return false;
  at::CPUGeneratorImpl* generator = cpu_generator(given);
  if (!generator) return false;
  RandomFill sample = fill;
  if (kind == Matches::integers) sample.range = 100, sample.base = 1, sample.wide = false;
  if (fill.dtype == at::kBool) sample.range = 2, sample.base = 0;
  const Match match = matches.of(kind, fill.dtype, [&] { return matching_rounding(sample); });
  if (match == Match::none) return false;
  fill.fused = match == Match::fused;
  return with_state(*generator, [&](MersenneTwister& state) { fill_values(state, fill, self); });
}

/// The number of bits of the significand.
int64_t digits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return std::numeric_limits<c10::Half>::digits;
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::digits;
    case at::kFloat:
      return std::numeric_limits<float>::digits;
    default:
      return std::numeric_limits<double>::digits;
  }
}

struct Limits {
  double low, high;
};

Limits limits_of(at::ScalarType dtype) {
  Limits limits{};
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, dtype, "limits_of", [&] {
    limits = {static_cast<double>(std::numeric_limits<scalar_t>::lowest()),
              static_cast<double>(std::numeric_limits<scalar_t>::max())};
  });
  return limits;
}

/// Whether all integers in [from, to) have an exact value in the dtype. For other ranges, libtorch adjusts the ends,
/// warns or reports an error.
bool holds_integers(at::ScalarType dtype, int64_t from, int64_t to) {
  if (at::isFloatingType(dtype)) {
    const int64_t most = int64_t{1} << digits_of(dtype);
    return from >= -most && to <= most;
  }
  if (dtype == at::kLong) return true;
  const Limits limits = limits_of(dtype);
  return static_cast<double>(from) >= limits.low && static_cast<double>(to - 1) <= limits.high;
}

bool is_drawn_type(at::ScalarType dtype) {
  return kernels::can_random_fill({.law = RandomLaw::bernoulli, .dtype = dtype, .a = 0.5});
}

/// Whether all probabilities are in [0, 1].
/// Params: p – dense
bool are_probabilities(const at::Tensor& p) {
  bool valid = true;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, p.scalar_type(), "are_probabilities", [&] {
    const auto* values = p.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < p.numel(); ++i) {
      const auto x = static_cast<std::conditional_t<std::is_same_v<scalar_t, double>, double, float>>(values[i]);
      valid &= x >= 0 && x <= 1;
    }
  });
  return valid;
}

bool is_separate(const at::Tensor& a, const at::Tensor& b) {
  const at::MemOverlapStatus overlap = at::get_overlap_status(a, b);
  return overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial;
}

class FastRandom final : public tap::RandomOperators {
 public:
  bool bernoulli(at::Tensor& self, double p, const Generator& generator) override {
    return draw(self, {.law = RandomLaw::bernoulli, .a = p}, Matches::bernoulli, generator);
  }

  bool bernoulli(at::Tensor& self, const at::Tensor& p, const Generator& given) override {
    at::CPUGeneratorImpl* generator = cpu_generator(given);
    const bool known = can_fill(self) && is_drawn_type(self.scalar_type()) && p.defined() && p.device().is_cpu() &&
                       p.layout() == at::kStrided && at::isFloatingType(p.scalar_type()) &&
                       p.is_non_overlapping_and_dense() && at::is_expandable_to(p.sizes(), self.sizes()) && generator &&
                       !self.has_names() && is_separate(self, p) && is_drawn_type(p.scalar_type());
    if (!known || !are_probabilities(p)) return false;
    const auto compare = [&] { return matching_probabilities(p.scalar_type()); };
    if (matches.of(Matches::probabilities, p.scalar_type(), compare) == Match::none) return false;
    return with_state(*generator, [&](MersenneTwister& state) { fill_bernoulli(state, self, p); });
  }

  bool uniform(at::Tensor& self, double from, double to, const Generator& generator) override {
    if (!is_drawn_type(self.scalar_type())) return false;
    const Limits limits = limits_of(self.scalar_type());
    const bool valid = from >= limits.low && to <= limits.high && from <= to && to - from <= limits.high / 2;
    return valid && draw(self, {.law = RandomLaw::uniform, .a = from, .b = to}, Matches::uniform, generator);
  }

  bool normal(at::Tensor& self, double mean, double std, const Generator& generator) override {
    const RandomFill fill{.law = RandomLaw::normal, .a = mean, .b = std};
    return std >= 0 && self.is_contiguous() && draw(self, fill, Matches::normal, generator);
  }

  bool random(at::Tensor& self, const Generator& generator) override {
    const at::ScalarType dtype = self.scalar_type();
    RandomFill fill{.law = RandomLaw::integers};
    if (!is_drawn_type(dtype)) return false;
    if (at::isFloatingType(dtype)) {
      fill.range = (uint64_t{1} << digits_of(dtype)) + 1;
    } else {
      fill.range = dtype == at::kLong ? uint64_t{1} << 63 : static_cast<uint64_t>(limits_of(dtype).high) + 1;
    }
    fill.wide = dtype == at::kDouble || dtype == at::kLong;
    return draw(self, fill, Matches::any_integer, generator);
  }

  bool random(at::Tensor& self, int64_t from, std::optional<int64_t> to, const Generator& generator) override {
    if (!to || from >= *to || !is_drawn_type(self.scalar_type()) || !holds_integers(self.scalar_type(), from, *to)) {
      return false;
    }
    const uint64_t range = static_cast<uint64_t>(*to) - static_cast<uint64_t>(from);
    const RandomFill fill{.law = RandomLaw::integers, .range = range, .base = from, .wide = range >= uint64_t{1} << 28};
    return draw(self, fill, Matches::integers, generator);
  }

  bool randperm(at::Tensor& out, int64_t n, const Generator& given) override {
    const at::ScalarType dtype = out.scalar_type();
    at::CPUGeneratorImpl* generator = cpu_generator(given);
    const bool known = guards.load(std::memory_order_relaxed) > 0 && (dtype == at::kLong || dtype == at::kInt) &&
                       n >= fewest_values && n < (int64_t{1} << 32) / 20 - 1 && out.dim() == 1 && out.size(0) == n &&
                       out.is_contiguous() && out.device().is_cpu() && out.layout() == at::kStrided && generator;
    if (!known) return false;
    const auto compare = [&] { return matching_permutation(dtype); };
    if (matches.of(Matches::permutation, dtype, compare) == Match::none) return false;
    return with_state(*generator, [&](MersenneTwister& state) {
      kernels::random_permutation(state, dtype, out.mutable_data_ptr(), n);
    });
  }
};

void install() {
  [[gnu::used]] static const bool installed = [] {
    tap::replace_random_operators(new FastRandom);  // never destroyed: other threads may still draw
    return true;
  }();
}

}  // namespace

FastRandomGuard::FastRandomGuard(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  install();
  guards.fetch_add(1, std::memory_order_relaxed);
}

FastRandomGuard::~FastRandomGuard() {
  if (enabled_) guards.fetch_sub(1, std::memory_order_relaxed);
}

bool FastRandomGuard::active() {
  return guards.load(std::memory_order_relaxed) > 0;
}

int64_t FastRandomGuard::performed() {
  return performed_calls.load(std::memory_order_relaxed);
}

}  // namespace bellows::nn
