#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>  // behind gtest

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <thread>

#include "bellows/data/order/packing.h"
#include "tests/data/order/order_support.h"
#include "tests/support/slow_tests.h"

namespace bellows::data::testing {
namespace {

// The same cases in each run; BELLOWS_SLOW makes ten times as many, RC_PARAMS in the environment overrides both.
const int configured = [] {
  return setenv("RC_PARAMS", slow_tests() ? "seed=6 max_success=1000" : "seed=6 max_success=100", /*overwrite=*/0);
}();

template <class T>
T between(T least, T most) {
  return *rc::gen::inRange<T>(least, most + 1);
}

Division some_division(Remainder remainder) {
  return {.batch_size = between<int64_t>(1, 9),
          .world_size = between<int64_t>(1, 8),
          .remainder = remainder,
          .global_batch = *rc::gen::arbitrary<bool>()};
}

template <class T>
std::pair<std::string, T> one_of(const std::map<std::string, T>& all) {
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const auto& [name, value] : all) names.push_back(name);
  const auto name = *rc::gen::elementOf(names);
  return {name, all.at(name)};
}

/// What a world takes behind `consumed` in up to `most` steps, row by row; moves `consumed`. Padding is left out.
std::vector<int64_t> take(const Source& source, const Order& order, uint64_t seed, int64_t epoch, Division division,
                          int64_t& consumed, int64_t most) {
  std::vector<int64_t> taken;
  int64_t steps = -1, last = consumed;
  for (division.rank = 0; division.rank < division.world_size; ++division.rank) {
    const EpochPlan plan(source, order, seed, epoch, division, consumed);
    RC_ASSERT(steps < 0 || steps == plan.batches());
    steps = plan.batches();
    for (int64_t step = 0; step < std::min(steps, most); ++step) {
      const BatchPlan batch = plan.batch(step);
      const auto rows = static_cast<int64_t>(batch.positions.size());
      const int64_t least = samples_per_step(division) / division.world_size;
      RC_ASSERT(rows <= (division.global_batch ? least + 1 : division.batch_size));
      RC_ASSERT(!division.global_batch || division.rank > 0 || rows > 0);
      RC_ASSERT(rows >= least || (division.remainder == Remainder::uneven && step + 1 == steps));
      RC_ASSERT(batch.place.padding == 0 || (division.remainder == Remainder::pad && step + 1 == steps));
      taken.insert(taken.end(), batch.positions.begin(), batch.positions.end() - batch.place.padding);
      last = batch.place.consumed;
    }
  }
  consumed = last;
  return taken;
}

RC_GTEST_PROP(EpochPlan, DeliversExactlyTheSequenceWhateverTheWorldsThatShareIt, ()) {
  const auto n = between<int64_t>(1, 300);
  const auto [name, order] = one_of(all_orders(n));
  RC_TAG(name);
  const auto source = uneven_blocks(n);
  const auto seed = between<uint64_t>(0, 5);
  const auto epoch = between<int64_t>(0, 5);
  const auto expected = values(order->positions(*source, seed, epoch));
  std::vector<int64_t> seen;
  int64_t consumed = 0;
  for (int restarts = between(0, 4); restarts >= 0; --restarts) {
    const int64_t most = restarts == 0 ? INT64_MAX : between<int64_t>(0, 6);
    const auto part = take(*source, *order, seed, epoch, some_division(Remainder::uneven), consumed, most);
    seen.insert(seen.end(), part.begin(), part.end());
    RC_ASSERT(static_cast<int64_t>(seen.size()) == consumed);
  }
  RC_ASSERT(consumed == static_cast<int64_t>(expected.size()));
  RC_ASSERT(sorted(seen) == sorted(expected));
}

RC_GTEST_PROP(EpochPlan, PadsAndDropsWhatIsLeft, ()) {
  const auto n = between<int64_t>(1, 100);
  const auto source = uneven_blocks(n);
  const auto expected = values(shuffled()->positions(*source, 1, 0));
  int64_t consumed = between<int64_t>(0, n);
  const std::vector<int64_t> rest(expected.begin() + consumed, expected.end());
  int64_t end = consumed;
  const Division padded = some_division(Remainder::pad);
  RC_ASSERT(sorted(take(*source, *shuffled(), 1, 0, padded, end, INT64_MAX)) == sorted(rest));
  RC_ASSERT(end == n);
  end = consumed;
  const Division dropped = some_division(Remainder::drop);
  const auto kept = take(*source, *shuffled(), 1, 0, dropped, end, INT64_MAX);
  const int64_t step = samples_per_step(dropped);
  RC_ASSERT(n - end < step);
  RC_ASSERT(sorted(kept) == sorted({expected.begin() + consumed, expected.begin() + end}));
}

RC_GTEST_PROP(EpochPlan, SharesTheLastStepAsEvenlyAsPossible, ()) {
  const auto n = between<int64_t>(1, 100);
  Division division = some_division(Remainder::uneven);
  int64_t least = n, most = 0;
  for (division.rank = 0; division.rank < division.world_size; ++division.rank) {
    const EpochPlan plan(CountingSource(n), *sequential(), 0, 0, division);
    RC_ASSERT(plan.batches() == count_batches(n, division));
    const auto rows = static_cast<int64_t>(plan.batch(plan.batches() - 1).positions.size());
    least = std::min(least, rows);
    most = std::max(most, rows);
  }
  RC_ASSERT(most - least <= 1);
}

/// The first digits in another format: the path goes to both.
SourcePtr rewritten(const std::string& path, const std::function<std::unique_ptr<Sink>(const std::string&)>& sink,
                    const std::function<SourcePtr(const std::string&)>& source) {
  const SourcePtr digits = open(kDigits, {.split = "test"}).source();
  const auto writer = sink(path);
  Sample sample;
  for (int64_t i = 0; i < 75; ++i) {
    digits->read(i, sample);
    writer->write(sample);
  }
  writer->close();
  return source(path);
}

/// Sources of every kind, as small as they come.
const std::map<std::string, Dataset>& sources() {
  static const TemporaryFolder folder;
  static const std::map<std::string, Dataset> all = [] {
    const SourcePtr tensors = from_tensors({{"x", at::arange(97 * 3).view({97, 3})}});
    const Dataset digits = open(kDigits, {.split = "test"}).random_crop(8, 8, 1).normalize();
    const auto pictures = [](SourcePtr source) { return Dataset(std::move(source)).random_crop(8, 8, 1); };
    const Packing rows = pack_rows(std::vector<int64_t>(97, 3), {.row_length = 7, .window = 10});
    return std::map<std::string, Dataset>{
        {"tensors", Dataset(tensors)},
        {"webdataset", digits.subrange(100, 211)},
        {"subset", digits.subset(some_numbers(60, 300))},
        {"joined", Dataset(concat({tensors, subrange(tensors, 10, 30)}))},
        {"packed", Dataset(packed(tensors, "x", rows))},
        {"tfrecord", pictures(rewritten(
                         folder / "digits.tfrecord", [](auto& path) { return tfrecord_sink(path); },
                         [](auto& path) { return open_tfrecord({path}); }))},
        {"recordio", pictures(rewritten(
                         folder / "digits.rec", [](auto& path) { return recordio_sink(path); },
                         [](auto& path) { return open_recordio({path}); }))},
        {"beton", pictures(rewritten(
                      folder / "digits.beton", [](auto& path) { return beton_sink(path); },
                      [](auto& path) { return open_beton({path}); }))},
        {"mds", pictures(rewritten(
                    folder / "mds", [](auto& path) { return mds_sink(path, {.size_limit = 4096}); },
                    [](auto& path) { return open_mds(path); }))},
        {"pack", pictures(rewritten(
                     folder / "digits.pack", [](auto& path) { return pack_sink(path); },
                     [](auto& path) { return open_pack({path}); }))}};
  }();
  return all;
}

using Delivered = std::vector<std::pair<int64_t, std::string>>;  // id and content of each row

void deliver(const Batch& batch, Delivered& delivered) {
  for (int64_t row = 0; row < batch.size() - batch.padding(); ++row) {
    std::string bytes;
    for (const auto& [name, tensor] : batch.tensors()) bytes += content(tensor[row]);
    delivered.emplace_back(batch.ids()[static_cast<size_t>(row)], bytes);
  }
}

RC_GTEST_PROP(Loader, DeliversExactlyTheSameSamplesWhateverTheWorldsThreadsAndResumePoints, ()) {
  const auto [kind, set] = one_of(sources());
  const auto [name, order] = one_of(all_orders(set.size()));
  RC_TAG(kind);
  const auto epoch = between<int64_t>(0, 3);
  const Dataset ordered = set.order(order, between<uint64_t>(0, 3));
  Delivered expected, seen;
  Loader whole = ordered.batch(50).threads(0).loader();
  for (const Batch& batch : whole.epoch(epoch)) deliver(batch, expected);
  int64_t consumed = 0;
  for (int restarts = between(0, 2); restarts >= 0; --restarts) {
    const Remainder end = *rc::gen::element(Remainder::uneven, Remainder::pad);
    const Division world = some_division(end);
    const int64_t most = restarts == 0 ? INT64_MAX : between<int64_t>(0, 5);
    int64_t last = consumed, batches = -1;
    for (int64_t rank = 0; rank < world.world_size; ++rank) {
      Loader loader = ordered.batch(world.batch_size, end)
                          .distributed(rank, world.world_size, world.global_batch)
                          .threads(between<int64_t>(0, 4))
                          .prefetch(between<int64_t>(1, 3))
                          .loader();
      loader.start_at(epoch, consumed);
      int64_t taken = 0;
      for (std::optional<Batch> batch; taken < most && (batch = loader.next()); ++taken) {
        deliver(*batch, seen);
        last = batch->consumed();
      }
      RC_ASSERT(batches < 0 || batches == taken);
      batches = taken;
    }
    consumed = last;
  }
  std::sort(expected.begin(), expected.end());
  std::sort(seen.begin(), seen.end());
  RC_ASSERT(seen == expected);
}

RC_GTEST_PROP(Mixed, KeepsEveryFrontPartWithinOneSampleOfItsShares, ()) {
  const auto weights = *rc::gen::nonEmpty(rc::gen::container<std::vector<double>>(
      rc::gen::map(rc::gen::inRange(1, 1000), [](int weight) { return 0.25 * weight; })));
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (size_t i = 0; i < weights.size(); ++i) total += sizes.emplace_back(between<int64_t>(1, 60));
  const OrderPtr order = mixed(sizes, weights, *rc::gen::element(MixEnd::first, MixEnd::last));
  const CountingSource source(total);
  RC_PRE(order->length(source, 0) < 20000);
  const auto epoch = between<int64_t>(0, 3);
  const Positions positions = order->positions(source, 1, epoch);
  std::vector<int64_t> ends, given(sizes.size());
  ends.reserve(sizes.size());
  for (const int64_t size : sizes) ends.push_back(size + (ends.empty() ? 0 : ends.back()));
  double sum = 0;
  for (const double weight : weights) sum += weight;
  for (int64_t i = 0; i < positions.size(); ++i) {
    ++given[static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), positions[i]) - ends.begin())];
    for (size_t d = 0; d < sizes.size(); ++d)
      RC_ASSERT(std::abs(static_cast<double>(given[d]) - static_cast<double>(i + 1) * weights[d] / sum) < 1);
  }
}

RC_GTEST_PROP(Packing, HasEachTokenInOneRow, ()) {
  const auto lengths = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 40));
  const PackingOptions options{.row_length = between<int64_t>(1, 30),
                               .window = between<int64_t>(1, 20),
                               .shuffle = *rc::gen::arbitrary<bool>(),
                               .seed = between<uint64_t>(0, 9)};
  const Packing packing = pack_rows(lengths, options);
  std::vector<std::vector<bool>> seen;
  seen.reserve(lengths.size());
  for (const int64_t length : lengths) seen.emplace_back(static_cast<size_t>(length));
  for (int64_t row = 0; row < packing.rows(); ++row) {
    int64_t used = 0;
    for (int64_t i = packing.row_starts[static_cast<size_t>(row)]; i < packing.row_starts[static_cast<size_t>(row) + 1];
         ++i) {
      const Piece& piece = packing.pieces[static_cast<size_t>(i)];
      used += piece.length;
      for (int64_t k = piece.begin; k < piece.begin + piece.length; ++k) {
        auto token = seen.at(static_cast<size_t>(piece.document)).begin() + k;
        RC_ASSERT(!*token);
        *token = true;
      }
    }
    RC_ASSERT(used >= 1);
    RC_ASSERT(used <= options.row_length);
  }
  for (const auto& document : seen) RC_ASSERT(std::count(document.begin(), document.end(), false) == 0);
}

TEST(Loader, RanksInLockStepEndTogetherWhateverIsSkipped) {
  const auto source = std::make_shared<CountingSource>(
      101, [](int64_t index) { TORCH_CHECK_VALUE(index % 7 != 0 && index / 20 != 2, "bad sample ", index); });
  for (const Remainder remainder : {Remainder::uneven, Remainder::pad, Remainder::drop}) {
    constexpr int64_t world = 5;
    std::barrier step(world);
    std::atomic<int64_t> samples{0}, padding{0};
    {
      std::vector<std::jthread> ranks;
      ranks.reserve(static_cast<size_t>(world));
      for (int64_t rank = 0; rank < world; ++rank) {
        ranks.emplace_back([&, rank] {
          Loader loader = Dataset(source)
                              .batch(3, remainder)
                              .distributed(rank, world)
                              .on_bad_sample(OnBadSample::skip)
                              .threads(rank)
                              .loader();
          for (const Batch& batch : loader.epoch(0)) {
            samples += batch.size();
            padding += batch.padding();
            step.arrive_and_wait();  // as an all-reduce would
          }
        });
      }
    }
    // Good ones of 0 … 100; drop ends at 89. Padded with 0, 1, 2, 3, of which 0 is bad.
    EXPECT_EQ(samples, remainder == Remainder::drop ? 60 : remainder == Remainder::pad ? 72 : 69);
    EXPECT_EQ(padding, remainder == Remainder::pad ? 3 : 0);
  }
}

}  // namespace
}  // namespace bellows::data::testing
