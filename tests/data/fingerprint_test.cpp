#include "bellows/data/fingerprint.h"

#include <ATen/ops/arange.h>

#include "tests/data/support.h"

namespace bellows::data {

using testing::a_png;
using testing::CountingSource;
using testing::Member;
using testing::TemporaryFolder;
using testing::write_shard;

namespace {

std::vector<Member> members(int count) {
  std::vector<Member> result;
  for (int i = 0; i < count; ++i) {
    const std::string key = "s" + std::to_string(1000 + i);
    result.push_back({key + ".png", a_png()});
    result.push_back({key + ".cls", std::to_string(i % 10)});
  }
  return result;
}

std::string print_of(const std::vector<Member>& content, const std::string& shard = "train-000.tar") {
  const TemporaryFolder folder;
  write_shard(folder / shard, content);
  return fingerprint(open(folder / shard));
}

/// Noise whose samples are made anew; it counts how often that happens.
SourcePtr made_on_demand(int* reads) {
  return std::make_shared<CountingSource>(100, [reads](int64_t) { ++*reads; });
}

}  // namespace

TEST(Fingerprint, IsTheSameInEveryFolderAndAtEveryTime) {
  const std::string print = print_of(members(20));
  EXPECT_EQ(print, print_of(members(20)));
  EXPECT_TRUE(print.starts_with("20 samples, ")) << print;
  EXPECT_EQ(print.size(), std::string("20 samples, 0123456789abcdef").size());
}

TEST(Fingerprint, OfTheDigitsIsTheSameOnEveryMachine) {
  EXPECT_EQ(fingerprint(open(testing::kDigits, {.split = "test"})), "359 samples, ae1523987888be26");
}

TEST(Fingerprint, ChangesWithTheData) {
  const std::string print = print_of(members(20));
  EXPECT_NE(print, print_of(members(19)));
  std::vector<Member> other = members(20);
  other[9].content = "7";
  EXPECT_NE(print, print_of(other)) << "another label of the same size";
  other = members(20);
  other[4].name = "renamed.png";
  other[5].name = "renamed.cls";
  EXPECT_NE(print, print_of(other));
  other = members(20);
  std::swap(other[0], other[2]);
  std::swap(other[1], other[3]);
  EXPECT_NE(print, print_of(other)) << "another order";
  EXPECT_NE(print, print_of(members(20), "train-001.tar"));
}

TEST(Fingerprint, GoesByWhatIsReadNotByWhatIsDoneToIt) {
  const Dataset digits = open(testing::kDigits, {.split = "test"});
  const std::string print = fingerprint(digits);
  EXPECT_EQ(print, fingerprint(digits.shuffle(3).batch(7).resize(5, 5).threads(2)));
  EXPECT_NE(print, fingerprint(digits.subrange(0, 358)));
  EXPECT_NE(fingerprint(digits.subset({0, 1, 2})), fingerprint(digits.subset({0, 2, 1})));
  EXPECT_NE(fingerprint(digits.subrange(0, 3)), fingerprint(digits.subrange(1, 4)));
  DatasetInfo info = digits.info();
  info.mean = {0.25};
  EXPECT_NE(print, fingerprint(Dataset(digits.source(), info)));
}

TEST(Fingerprint, OfManySamplesLooksAtSomeOfThem) {
  const at::Tensor numbers = at::arange(200'000);
  const auto print = [&] { return fingerprint(Dataset(from_tensors({{"x", numbers}}))); };
  const std::string before = print();
  numbers.mutable_data_ptr<int64_t>()[0] = 5;
  const std::string first = print();
  EXPECT_NE(before, first);
  numbers.mutable_data_ptr<int64_t>()[199'999] = 5;
  EXPECT_NE(first, print()) << "the last sample is among them";
}

TEST(Fingerprint, DoesNotTouchSamplesThatAreMadeOnDemand) {
  int reads = 0;
  EXPECT_TRUE(fingerprint(Dataset(made_on_demand(&reads))).starts_with("100 samples, "));
  EXPECT_TRUE(fingerprint(Dataset(made_on_demand(&reads)).subrange(0, 5)).starts_with("5 samples, "));
  EXPECT_EQ(reads, 0);
}

}  // namespace bellows::data
