#include "bellows/data/formats/unpacked_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace bellows::data::testing {
namespace {

io::Bytes hundred_bytes() {
  return io::Bytes(100);
}

TEST(UnpackedFiles, AreUnpackedOnceForManyThreads) {
  UnpackedFiles files;
  std::atomic<int> unpacked{0};
  std::vector<std::jthread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (size_t file = 0; file < 4; ++file) {
        const auto content = files.get(file, [&] {
          ++unpacked;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the others come meanwhile
          return hundred_bytes();
        });
        EXPECT_EQ(content->size(), 100U);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(unpacked, 4);
}

TEST(UnpackedFiles, ThoseUsedLastAreKeptWithinTheLimit) {
  UnpackedFiles files(250);
  const auto first = files.get(0, hundred_bytes);
  files.get(1, hundred_bytes);
  EXPECT_EQ(files.find(0), first);
  files.get(2, hundred_bytes);
  EXPECT_TRUE(files.find(0));
  EXPECT_FALSE(files.find(1));
  EXPECT_TRUE(files.find(2));
  files.get(3, [] { return io::Bytes(1000); });
  EXPECT_FALSE(files.find(0));
  EXPECT_FALSE(files.find(2));
  EXPECT_TRUE(files.find(3)) << "one is kept, however large";
  EXPECT_EQ(first->size(), 100U) << "who holds it has it";
  files.get(1, hundred_bytes);
  EXPECT_FALSE(files.find(3));
}

TEST(UnpackedFiles, AreTriedAgainAfterAFailure) {
  UnpackedFiles files;
  EXPECT_THROW(files.get(0, []() -> io::Bytes { throw std::runtime_error("damaged"); }), std::runtime_error);
  EXPECT_FALSE(files.find(0));
  EXPECT_EQ(files.get(0, hundred_bytes)->size(), 100U);
}

}  // namespace
}  // namespace bellows::data::testing
