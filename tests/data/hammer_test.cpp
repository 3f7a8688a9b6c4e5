#include <atomic>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

LoaderOptions options(int64_t batch_size, int64_t threads, int64_t prefetch) {
  return {.batch_size = batch_size, .order = shuffled(), .seed = 11, .threads = threads, .prefetch = prefetch};
}

void nap(std::minstd_rand& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 50));
}

/// Reads take a random while, so that workers overtake each other.
SourcePtr slow_numbers(int64_t n) {
  return std::make_shared<CountingSource>(n, [](int64_t) {
    thread_local std::minstd_rand random(
        static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
    nap(random);
  });
}

TEST(LoaderHammer, KeepsOrderAndContentWhileWorkersOvertakeEachOther) {
  Loader inline_loader(slow_numbers(300), {}, options(7, 0, 1)), loader(slow_numbers(300), {}, options(7, 5, 6));
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    EXPECT_EQ(fingerprints(loader, epoch), fingerprints(inline_loader, epoch));
}

TEST(LoaderHammer, CanBeDestroyedAtAnyMoment) {
  std::minstd_rand random(1);
  for (int round = 0; round < 60; ++round) {
    std::optional<Batch> kept;
    Loader loader(slow_numbers(200), {}, options(5, 1 + round % 4, 1 + round % 5));
    loader.start(round);
    for (int taken = round % 7; taken > 0; --taken) kept = loader.next();
    nap(random);
  }
}

TEST(LoaderHammer, CanBeStartedAnewAtAnyMoment) {
  Loader reference(slow_numbers(60), {}, options(5, 0, 1)), loader(slow_numbers(60), {}, options(5, 3, 4));
  std::minstd_rand random(2);
  for (int64_t round = 0; round < 60; ++round) {
    const int64_t first = static_cast<int64_t>(random() % 12);
    loader.start(round, first);
    nap(random);
    reference.start(round, first);
    EXPECT_EQ(fingerprint(*loader.next()), fingerprint(*reference.next()));
  }
}

TEST(LoaderHammer, HandsErrorsOfWorkersOverAndGoesOn) {
  const auto source = std::make_shared<CountingSource>(100, [](int64_t index) {
    if (index % 10 == 3) throw std::runtime_error("disk on fire at " + std::to_string(index));
  });
  LoaderOptions sequential = options(10, 4, 3);
  sequential.order = nullptr;
  Loader loader(source, {}, sequential);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    loader.start(epoch);
    for (int64_t batch = 0; batch < 10; ++batch) {
      try {
        loader.next();
        ADD_FAILURE() << "batch " << batch;
      } catch (const std::runtime_error& error) {
        EXPECT_THAT(error.what(), HasSubstr("disk on fire at " + std::to_string(batch * 10 + 3)));
      }
    }
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(LoaderHammer, BatchesMayDieOnOtherThreads) {
  Loader loader(slow_numbers(200), {}, options(4, 2, 3));
  std::vector<std::jthread> users;
  std::atomic<int64_t> sum{0};
  for (Batch& batch : loader.epoch(0)) {
    users.emplace_back([&sum, mine = std::move(batch)] {
      for (int64_t i = 0; i < mine.size(); ++i) sum += mine["x"].const_data_ptr<int64_t>()[i];
    });
  }
  users.clear();
  EXPECT_EQ(sum, 199 * 200 / 2);
}

TEST(LoaderHammer, ManyLoadersReadOneSourceAndOneCache) {
  const Dataset set =
      open(kDigits, {.split = "test"}).shuffle(4).random_crop(8, 8, 2).flip().batch(16).threads(2).cache(1 << 20);
  Loader reference = set.threads(0).loader();
  const auto expected = fingerprints(reference, 0);
  std::vector<std::jthread> users;
  users.reserve(3);
  for (int user = 0; user < 3; ++user) {
    users.emplace_back([&] {
      Loader loader = set.loader();
      EXPECT_EQ(fingerprints(loader, 0), expected);
    });
  }
}

}  // namespace
}  // namespace bellows::data::testing
