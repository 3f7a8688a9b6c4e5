#include <gmock/gmock.h>

#include <sys/stat.h>

#include <filesystem>

#include "bellows/comm/shard.h"
#include "bellows/parallel/placement/weight_file.h"
#include "tests/parallel/placement/streamed_support.h"

namespace bellows::parallel::testing {
namespace {

using ::testing::HasSubstr;

at::Tensor read_part(const WeightFile& file, const comm::ShardSpec& spec, at::Tensor target) {
  target.fill_(-1);
  file.read(file.entries().front(), spec, target);
  return target;
}

TEST(WeightFile, ReadsBoxesAndRuns) {
  const TemporaryFolder folder;
  const at::Tensor whole = at::arange(4 * 3 * 5).view({4, 3, 5}).to(at::kFloat).mul(0.37);
  io::save_safetensors(folder / "one.safetensors", {{"whole", whole}});
  const WeightFile file(folder / "one.safetensors");
  const std::vector<int64_t> sizes = whole.sizes().vec();
  const std::vector<comm::ShardSpec> specs{comm::ShardSpec::whole(sizes), comm::ShardSpec::run(sizes, 7, 31),
                                           {sizes, {1, 0, 0}, {2, 3, 5}}, {sizes, {1, 1, 0}, {3, 2, 5}},
                                           {sizes, {0, 1, 2}, {4, 1, 2}}, {sizes, {2, 0, 4}, {1, 3, 1}}};
  for (const comm::ShardSpec& spec : specs) {
    const at::Tensor expected = comm::part_of(whole, spec).contiguous();
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor target = at::empty(expected.sizes(), dtype);
      EXPECT_TRUE(at::equal(read_part(file, spec, target), expected.to(dtype))) << dtype << target.sizes();
    }
    const at::Tensor strided = at::stack({expected, expected}, -1).select(-1, 1);
    EXPECT_TRUE(at::equal(read_part(file, spec, strided), expected));
  }
}

TEST(WeightFile, ReadsHeadersOfAnyLength) {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (int64_t i = 0; i < 300; ++i) tensors.emplace_back("tensor." + std::to_string(1000 + i), at::full({3}, i));
  io::save_safetensors(folder / "many.safetensors", tensors);
  const WeightFile file(folder / "many.safetensors");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor target = at::zeros({3}, at::kLong);
    file.read(file.entries()[i], target);
    EXPECT_EQ(file.entries()[i].name, tensors[i].first);
    EXPECT_TRUE(at::equal(target, tensors[i].second.to(at::kLong)));
  }
}

TEST(WeightFile, OtherKindsOfFilesAreRefused) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {folder.path(), pipe})
    EXPECT_THAT(message_of([&] { WeightFile file(path); }), HasSubstr(path + ": expected a regular file"));
}

// All parts come from the file that was opened, also if another one replaces it.
TEST(WeightFile, AReplacedFileIsNotNoticed) {
  const TemporaryFolder folder;
  const std::string path = folder / "one.safetensors";
  io::save_safetensors(path, {{"whole", at::full({4}, 1.5)}});
  const WeightFile file(path);
  io::save_safetensors(path, {{"other", at::full({9}, 2.5)}});
  EXPECT_EQ(file.entries().front().name, "whole");
  EXPECT_TRUE(at::equal(read_part(file, comm::ShardSpec::run({4}, 1, 3), at::empty({3})), at::full({3}, 1.5)));
}

}  // namespace
}  // namespace bellows::parallel::testing
