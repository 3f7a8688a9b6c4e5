#include "bellows/kernels/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/DistributionsHelper.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace bellows::kernels {
namespace {

MersenneTwister state_of(const at::Generator& generator) {
  const at::mt19937_data_pod data = generator.get<at::CPUGeneratorImpl>()->engine().data();
  return {.words = data.state_, .left = data.left_, .next = data.next_};
}

void expect_same_state(const MersenneTwister& ours, const at::Generator& generator, const std::string& what) {
  const MersenneTwister theirs = state_of(generator);
  EXPECT_EQ(ours.left, theirs.left) << what;
  EXPECT_EQ(ours.next, theirs.next) << what;
  EXPECT_EQ(ours.words, theirs.words) << what;
}

/// A generator after `words` draws.
at::Generator generator_after(uint64_t seed, int64_t words) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (int64_t i = 0; i < words; ++i) generator.get<at::CPUGeneratorImpl>()->random();
  return generator;
}

/// One kind of fill, and the operator of libtorch that draws the same values.
struct FillKind {
  std::string name;
  RandomFill fill;
  std::function<void(at::Tensor&, const at::Generator&)> theirs;
  int64_t fewest = 0;
};

// libtorch's distributions, value by value. They are the code of its kernel for `bernoulli_` on processors other than
// Intel's, so the test does not depend on the processor.
void draw_bernoulli(at::Tensor& x, double p, const at::Generator& generator) {
  auto* impl = generator.get<at::CPUGeneratorImpl>();
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kBFloat16, at::kHalf, x.scalar_type(), "draw_bernoulli", [&] {
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.mutable_data_ptr<scalar_t>()[i] = static_cast<scalar_t>(at::bernoulli_distribution<double>(p)(impl));
    }
  });
}

FillKind bernoulli(at::ScalarType dtype, double p) {
  return {"bernoulli " + std::to_string(p) + " " + c10::toString(dtype),
          {.law = RandomLaw::bernoulli, .dtype = dtype, .a = p},
          [=](at::Tensor& x, const at::Generator& generator) { draw_bernoulli(x, p, generator); }};
}

FillKind uniform(at::ScalarType dtype, double from, double to) {
  return {std::string("uniform ") + c10::toString(dtype),
          {.law = RandomLaw::uniform, .dtype = dtype, .a = from, .b = to},
          [=](at::Tensor& x, const at::Generator& generator) { x.uniform_(from, to, generator); }};
}

FillKind normal(at::ScalarType dtype, double mean, double std) {
  return {std::string("normal ") + c10::toString(dtype),
          {.law = RandomLaw::normal, .dtype = dtype, .a = mean, .b = std},
          [=](at::Tensor& x, const at::Generator& generator) { x.normal_(mean, std, generator); },
          16};
}

FillKind integers(at::ScalarType dtype, int64_t from, int64_t to) {
  const auto range = static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  return {"integers below " + std::to_string(to) + " " + c10::toString(dtype),
          {.law = RandomLaw::integers, .dtype = dtype, .range = range, .base = from, .wide = range >= 1u << 28},
          [=](at::Tensor& x, const at::Generator& generator) { x.random_(from, to, generator); }};
}

std::vector<FillKind> few_kinds() {
  return {bernoulli(at::kFloat, 0.9), uniform(at::kFloat, 0.1, 0.77), normal(at::kFloat, 0.3, 1.7),
          integers(at::kLong, -3, 97)};
}

std::vector<FillKind> all_kinds() {
  std::vector<FillKind> kinds = few_kinds();
  for (const auto dtype :
       {at::kDouble, at::kBFloat16, at::kHalf, at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    kinds.push_back(bernoulli(dtype, 0.3));
    kinds.push_back(integers(dtype, 0, dtype == at::kBool ? 2 : 100));
  }
  for (const double p : {0.0, 1.0, 0x1p-53, 1 - 0x1p-53, 0x1p-60, 1.0 / 3}) kinds.push_back(bernoulli(at::kFloat, p));
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    kinds.push_back(uniform(dtype, -2.5, 1.3));
    kinds.push_back(normal(dtype, -0.4, 2.2));
  }
  kinds.push_back(uniform(at::kFloat, 0, 1));
  kinds.push_back(normal(at::kFloat, 0, 1));
  kinds.push_back(integers(at::kFloat, 0, 10));
  for (const int64_t to : {int64_t{1}, int64_t{2}, int64_t{1} << 27, (int64_t{1} << 28) - 1, int64_t{1} << 28,
                           (int64_t{1} << 40) + 12345, int64_t{1} << 62}) {
    kinds.push_back(integers(at::kLong, 0, to));
  }
  return kinds;
}

/// Values and state of one fill against libtorch's, from a generator after `before` draws.
void expect_same_fill(const FillKind& kind, int64_t count, int64_t before, uint64_t seed = 11) {
  if (count < kind.fewest || !can_random_fill(kind.fill)) return;
  const std::string what =
      kind.name + ", " + std::to_string(count) + " values after " + std::to_string(before) + " words";
  at::Generator generator = generator_after(seed, before);
  MersenneTwister state = state_of(generator);
  at::Tensor theirs = torch::zeros({count}, kind.fill.dtype), ours = torch::zeros({count}, kind.fill.dtype);
  kind.theirs(theirs, generator);
  random_fill(state, kind.fill, ours.mutable_data_ptr(), ours.element_size(), count);
  EXPECT_TRUE(torch::equal(ours, theirs)) << what;
  expect_same_state(state, generator, what);
}

void expect_reference(const FillKind& kind, int64_t count) {
  if (!can_random_fill(kind.fill)) return;
  MersenneTwister ours = state_of(generator_after(1, 100)), theirs = ours;
  at::Tensor x = torch::zeros({count}, kind.fill.dtype), y = torch::zeros({count}, kind.fill.dtype);
  random_fill(ours, kind.fill, x.mutable_data_ptr(), x.element_size(), count);
  ref::random_fill(theirs, kind.fill, y.mutable_data_ptr(), y.element_size(), count);
  EXPECT_TRUE(torch::equal(x, y)) << kind.name << ", fused " << kind.fill.fused << ", " << count << " values";
  EXPECT_EQ(ours.words, theirs.words) << kind.name;
  EXPECT_EQ(ours.left, theirs.left) << kind.name;
  EXPECT_EQ(ours.next, theirs.next) << kind.name;
}

/// Restricts the kernels to an instruction set, and restores libtorch's number of threads.
class Random : public testing::Test {
 protected:
  ~Random() override {
    use_all_targets();
    at::set_num_threads(threads_);
  }
  static void use_all_targets() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
  /// Runs the test with each instruction set that this processor has.
  static void with_each_target(const std::function<void()>& test) {
    for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_SSSE3, HWY_SCALAR}) {
      use_all_targets();
      if (!(hwy::SupportedTargets() & target)) continue;
      SCOPED_TRACE(hwy::TargetName(target));
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().DeInit();
      test();
    }
    use_all_targets();
  }

 private:
  int threads_ = at::get_num_threads();
};

TEST_F(Random, EverySizeEqualsLibtorch) {
  for (const FillKind& kind : few_kinds()) {
    for (int64_t count = 0; count <= 10'000; ++count) {
      expect_same_fill(kind, count, count % 700);
      if (HasFailure()) return;
    }
  }
}

TEST_F(Random, FusedKernelsAreUsedWhereLibtorchHasThem) {
  const bool expected = at::get_cpu_capability() != "DEFAULT";
  EXPECT_EQ(can_random_fill(normal(at::kFloat, 0, 1).fill), expected);  // else the comparisons below would be skipped
}

TEST_F(Random, EveryTypeEqualsLibtorch) {
  with_each_target([] {
    for (const FillKind& kind : all_kinds()) {
      for (const int64_t count : {1, 2, 15, 16, 17, 33, 623, 624, 625, 1248, 5001}) {
        expect_same_fill(kind, count, 0);
        expect_same_fill(kind, count, 313);
      }
    }
  });
}

TEST_F(Random, LargeSizesEqualLibtorchOnAnyNumberOfThreads) {
  std::mt19937 sizes(3);
  const std::vector<FillKind> kinds = all_kinds();
  for (int i = 0; i < 100; ++i) {
    const auto count = std::uniform_int_distribution<int64_t>(100'000, 1'500'000)(sizes);
    const int threads = std::vector{1, 2, 4}[static_cast<size_t>(i) % 3];
    SCOPED_TRACE(threads);
    at::set_num_threads(threads);
    expect_same_fill(kinds[static_cast<size_t>(i) % kinds.size()], count, count % 1300);
  }
}

TEST_F(Random, EveryBoundaryOfAStageEqualsLibtorch) {
  constexpr int64_t stage = 64 * MersenneTwister::size;
  for (const int threads : {2, 4}) {
    at::set_num_threads(threads);
    for (const FillKind& kind : few_kinds()) {
      for (const int64_t before : {0, 311, 624}) {
        for (const int64_t stages : {14, 15}) {
          for (const int64_t more : {-1, 0, 16}) expect_same_fill(kind, stages * stage + more, before);
          for (const int64_t more : {-1, 0, 1}) expect_same_fill(kind, stages * stage + more - before, before);
        }
      }
    }
  }
}

TEST_F(Random, SavedStatesEqualLibtorch) {
  std::mt19937 draws(5);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto before = std::uniform_int_distribution<int64_t>(0, 3000)(draws);
    for (const FillKind& kind : few_kinds())
      expect_same_fill(kind, 2000 + static_cast<int64_t>(seed), before, seed << 30);
  }
}

TEST_F(Random, EqualsTheReference) {
  with_each_target([] {
    for (FillKind kind : all_kinds()) {
      if (kind.fill.law == RandomLaw::normal) continue;  // libtorch is its reference
      for (const bool fused : {true, false}) {
        kind.fill.fused = fused;
        for (const int64_t count : {1, 40, 700, 5001}) expect_reference(kind, count);
      }
    }
  });
}

TEST_F(Random, StridedValuesEqualContiguousOnes) {
  for (const FillKind& kind : all_kinds()) {
    if (kind.fewest > 0) continue;
    constexpr int64_t count = 3001;
    MersenneTwister a = state_of(generator_after(1, 10)), b = a;
    at::Tensor x = torch::zeros({count}, kind.fill.dtype), y = torch::zeros({count, 3}, kind.fill.dtype);
    random_fill(a, kind.fill, x.mutable_data_ptr(), x.element_size(), count);
    random_fill(b, kind.fill, y.mutable_data_ptr(), 3 * y.element_size(), count);
    EXPECT_TRUE(torch::equal(x, y.select(1, 0))) << kind.name;
    EXPECT_EQ(y.slice(1, 1).count_nonzero().item<int64_t>(), 0) << kind.name;
    EXPECT_EQ(a.words, b.words) << kind.name;
    EXPECT_EQ(a.next, b.next) << kind.name;
  }
}

TEST_F(Random, OneProbabilityPerValueEqualsLibtorch) {
  with_each_target([] {
    for (const auto p_dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const auto dtype :
           {at::kFloat, at::kBool, at::kHalf, at::kBFloat16, at::kDouble, at::kLong, at::kInt, at::kShort, at::kChar}) {
        for (const int64_t count : {1, 17, 623, 5001}) {
          at::Generator generator = generator_after(9, 77);
          MersenneTwister state = state_of(generator);
          const at::Tensor p = torch::rand({count, 2}).to(p_dtype).clamp(0, 1);
          at::Tensor theirs = torch::zeros({count}, dtype), ours = torch::zeros({count, 2}, dtype);
          theirs.bernoulli_(p.select(1, 1), generator);
          random_bernoulli(state, {.dtype = dtype,
                                   .out = ours.mutable_data_ptr(),
                                   .out_stride = 2 * ours.element_size(),
                                   .p_dtype = p_dtype,
                                   .p = p.select(1, 1).const_data_ptr(),
                                   .p_stride = 2 * p.element_size(),
                                   .count = count});
          EXPECT_TRUE(torch::equal(ours.select(1, 0), theirs)) << p_dtype << " " << dtype << " " << count;
          expect_same_state(state, generator, "probabilities");
        }
      }
    }
  });
}

TEST_F(Random, PermutationsEqualLibtorch) {
  for (const auto dtype : {at::kLong, at::kInt}) {
    for (const int64_t count : {0, 1, 2, 3, 100, 623, 624, 625, 1249, 10'000, 1'000'003}) {
      at::Generator generator = generator_after(9, 77);
      MersenneTwister state = state_of(generator);
      at::Tensor theirs = torch::empty({count}, dtype), ours = torch::empty({count}, dtype);
      at::randperm_out(theirs, count, generator);
      random_permutation(state, dtype, ours.mutable_data_ptr(), count);
      EXPECT_TRUE(torch::equal(ours, theirs)) << count;
      expect_same_state(state, generator, "permutation of " + std::to_string(count));
    }
  }
}

/// Address space of `bytes` bytes in which every `window` bytes are the same memory.
class RepeatedMemory {
 public:
  RepeatedMemory(size_t bytes, size_t window) : bytes_((bytes + window - 1) / window * window) {
    const int file = memfd_create("repeated", 0);
    void* place = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ok_ = file >= 0 && place != MAP_FAILED && ftruncate(file, static_cast<off_t>(window)) == 0;
    data_ = static_cast<uint8_t*>(place);
    for (size_t at = 0; ok_ && at < bytes_; at += window) {
      ok_ = mmap(data_ + at, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    }
    if (file >= 0) close(file);
  }
  ~RepeatedMemory() { munmap(data_, bytes_); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  uint8_t* data() const { return ok_ ? data_ : nullptr; }

 private:
  size_t bytes_;
  uint8_t* data_ = nullptr;
  bool ok_ = false;
};

// The fill overwrites the same memory again and again, so at its end the memory holds the last values.
TEST_F(Random, MoreThan32BitsOfValuesDoNotOverflow) {
  constexpr int64_t window = 16 << 20, count = (int64_t{1} << 32) + window / 2;
  const RepeatedMemory memory(count, window);
  ASSERT_NE(memory.data(), nullptr);
  const RandomFill fill{.law = RandomLaw::integers, .dtype = at::kByte, .range = 256};
  MersenneTwister state = state_of(generator_after(1, 0)), expected = state;
  at::set_num_threads(2);
  random_fill(state, fill, memory.data(), 1, count);

  std::vector<uint32_t> skipped(1 << 16);
  constexpr int64_t checked = window / 4;
  for (int64_t left = count - checked; left > 0; left -= static_cast<int64_t>(skipped.size())) {
    random_words(expected, skipped.data(), std::min(left, static_cast<int64_t>(skipped.size())));
  }
  std::vector<uint8_t> last(checked);
  at::set_num_threads(1);
  random_fill(expected, fill, last.data(), 1, checked);
  EXPECT_EQ(std::memcmp(memory.data() + count - checked, last.data(), last.size()), 0);
  EXPECT_EQ(state.words, expected.words);
  EXPECT_EQ(state.next, expected.next);
  EXPECT_EQ(state.left, expected.left);
}

TEST_F(Random, UnusualStatesAreContinued) {
  // A state that libtorch accepts, although it never makes it: 100 words are left, in the middle of the block.
  at::Generator generator = generator_after(3, 5);
  auto* impl = generator.get<at::CPUGeneratorImpl>();
  at::mt19937 engine = impl->engine();
  at::mt19937_data_pod data = engine.data();
  data.left_ = 101;
  data.next_ = 50;
  engine.set_data(data);
  impl->set_engine(engine);
  MersenneTwister state = state_of(generator);
  at::Tensor theirs = torch::empty({600'000}), ours = torch::empty({600'000});
  theirs.uniform_(0, 1, generator);
  random_fill(state, {}, ours.mutable_data_ptr(), 4, ours.numel());
  EXPECT_TRUE(torch::equal(ours, theirs));
  expect_same_state(state, generator, "unusual");
}

TEST_F(Random, BadArgumentsAreErrors) {
  MersenneTwister state = state_of(generator_after(3, 5));
  float value = 0;
  EXPECT_THROW(random_fill(state, {.law = RandomLaw::bernoulli, .a = 1.5}, &value, 4, 1), c10::ValueError);
  EXPECT_THROW(random_fill(state, {.law = RandomLaw::bernoulli, .a = NAN}, &value, 4, 1), c10::ValueError);
  EXPECT_THROW(random_fill(state, {.law = RandomLaw::normal}, &value, 4, 1), c10::ValueError);
  EXPECT_THROW(random_fill(state, {.dtype = at::kLong}, &value, 4, 1), c10::ValueError);
  EXPECT_THROW(random_permutation(state, at::kFloat, &value, 1), c10::ValueError);
  state.next = 600;
  EXPECT_THROW(random_fill(state, {}, &value, 4, 1), c10::ValueError);
}

}  // namespace
}  // namespace bellows::kernels
