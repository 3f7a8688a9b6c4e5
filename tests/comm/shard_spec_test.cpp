#include "bellows/comm/shard_spec.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace bellows::comm {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

/// The box's elements as slicing gives them: the numbers of the whole, row-major.
at::Tensor sliced(const ShardSpec& spec) {
  at::Tensor part = at::arange(c10::multiply_integers(spec.sizes)).view(spec.sizes);
  for (size_t dim = 0; dim < spec.sizes.size(); ++dim)
    part = part.narrow(static_cast<int64_t>(dim), spec.offset[dim], spec.length[dim]);
  return part.reshape({-1});
}

at::Tensor by_runs(const ShardSpec& spec) {
  std::vector<at::Tensor> parts = {at::empty({0}, at::kLong)};
  for (const auto& [begin, count] : spec.runs()) parts.push_back(at::arange(begin, begin + count));
  return at::cat(parts);
}

TEST(ShardSpec, RunsAreWhatSlicingGives) {
  const std::vector<int64_t> sizes = {3, 2, 4};
  for (int64_t code = 0; code < 3 * 4 * 2 * 3 * 4 * 5; ++code) {
    ShardSpec spec{sizes, {}, {}};
    int64_t rest = code;
    for (const int64_t size : sizes) {
      spec.offset.push_back(rest % size);
      rest /= size;
      spec.length.push_back(std::min(rest % (size + 1), size - spec.offset.back()));
      rest /= size + 1;
    }
    ASSERT_TRUE(at::equal(by_runs(spec), sliced(spec))) << code;
  }
}

TEST(ShardSpec, WholeTensorsAndRunsOfElementsAreOneRun) {
  EXPECT_THAT(ShardSpec::whole({3, 4}).runs(), ElementsAre(Pair(0, 12)));
  EXPECT_THAT(ShardSpec::whole({}).runs(), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(ShardSpec::whole({0, 4}).runs(), ElementsAre());
  EXPECT_THAT(ShardSpec::run({3, 4}, 2, 7).runs(), ElementsAre(Pair(2, 7)));
  EXPECT_THAT(ShardSpec::run({}, 0, 1).runs(), ElementsAre(Pair(0, 1)));
  EXPECT_THAT((ShardSpec{{4, 6}, {1, 2}, {2, 3}}).runs(), ElementsAre(Pair(8, 3), Pair(14, 3)));
}

// The boxes of a run have its elements, in their order.
TEST(ShardSpec, RunsBecomeBoxes) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 2, 4}, {4, 6}, {24}, {24, 1}, {2, 1, 3, 4}}) {
    for (int64_t begin = 0; begin < 24; ++begin) {
      for (int64_t count = 1; count <= 24 - begin; ++count) {
        std::vector<at::Tensor> parts;
        const std::vector<ShardSpec> boxes = ShardSpec::run(sizes, begin, count).boxes();
        for (const ShardSpec& box : boxes) {
          ASSERT_FALSE(box.is_run());
          parts.push_back(sliced(box));
        }
        ASSERT_TRUE(at::equal(at::cat(parts), at::arange(begin, begin + count))) << begin << " " << count;
        EXPECT_LE(boxes.size(), 2 * sizes.size() - 1);
      }
    }
  }
  const ShardSpec box{{4, 6}, {1, 2}, {2, 3}};
  EXPECT_THAT(box.boxes(), ElementsAre(box));
  EXPECT_THAT(ShardSpec::run({3, 4}, 5, 0).boxes(), ElementsAre());
  EXPECT_THAT(ShardSpec::run({}, 0, 1).boxes(), ElementsAre(ShardSpec::whole({})));
}

TEST(ShardSpec, BoxesOutsideAreRefused) {
  EXPECT_THAT(message_of([] { ShardSpec::run({3, 4}, 6, 7).runs(); }), HasSubstr("inside a tensor of sizes [3, 4]"));
  EXPECT_THAT(message_of([] { (ShardSpec{{4, 6}, {0, 0}, {4, 7}}).runs(); }), HasSubstr("length [4, 7]"));
}

}  // namespace

}  // namespace bellows::comm
