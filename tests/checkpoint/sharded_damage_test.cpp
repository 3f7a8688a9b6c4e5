#include <gmock/gmock.h>

#include <filesystem>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/io/bytes.h"
#include "bellows/io/crc32.h"
#include "tests/checkpoint/sharded_sample.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A small one of two ranks, in runs.
void save_small(const std::string& path) {
  run_ranks(2, [&](const comm::Group& group) {
    const at::Tensor whole = at::arange(40, at::kFloat).view({8, 5});
    const comm::ShardSpec spec = spec_of(whole, Kind::run, group.rank(), 2);
    save_sharded(path,
                 {.model = {{"w", local_of(whole, spec), spec},
                            {"n", at::scalar_tensor(3, at::kLong), comm::ShardSpec::whole({})}},
                  .rng = {{"cpu", at::ones({8}, at::kByte)}},
                  .step = 5},
                 group);
  });
}

/// The index with its checksum made anew.
std::string mended(const std::string& index) {
  const size_t tail = index.rfind(",\n  \"crc32c\": \"");
  char crc[16];
  std::snprintf(crc, sizeof(crc), "%08x", io::crc32c(io::as_bytes(std::string_view(index).substr(0, tail))));
  return index.substr(0, tail) + ",\n  \"crc32c\": \"" + crc + "\"\n}\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST(ShardedDamage, EveryFlippedByteIsFoundAndItsFileNamed) {
  const TemporaryFolder temporary;
  save_small(temporary / "step");
  ASSERT_EQ(load(temporary / "step").step, 5);
  for (const std::string& name : names_in(temporary / "step")) {
    const std::string path = temporary / "step/" + name, bytes = read_bytes(path);
    for (size_t at = 0; at < bytes.size(); at += at < 16 || at + 40 > bytes.size() ? 1 : 7) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      write_bytes(path, damaged);
      EXPECT_THAT(error_of([&] { load(temporary / "step"); }), HasSubstr(name)) << "byte " << at;
      EXPECT_THAT(error_of([&] { SavedCheckpoint(temporary / "step").verify(); }), HasSubstr(name)) << "byte " << at;
    }
    for (const size_t size : {size_t{0}, size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
      write_bytes(path, bytes.substr(0, size));
      EXPECT_THAT(error_of([&] { load(temporary / "step"); }), HasSubstr(name)) << size << " bytes";
    }
    std::filesystem::remove(path);
    EXPECT_THAT(error_of([&] { load(temporary / "step"); }), HasSubstr(name));
    write_bytes(path, bytes);
  }
  EXPECT_EQ(load(temporary / "step").step, 5);
}

TEST(ShardedDamage, IsSaidByAllRanksThoughOneNeedsTheFile) {
  const TemporaryFolder temporary;
  save_small(temporary / "step");
  const std::string path = temporary / "step/rank-00001-of-00002.safetensors";
  std::string bytes = read_bytes(path);
  bytes[bytes.find("}}") + 12] ^= 1;
  bytes[bytes.size() - 20] ^= 1;
  write_bytes(path, bytes);
  const std::string message = error_of_ranks(2, [&](const comm::Group& group) {
    const at::Tensor whole = at::zeros({8, 5});
    const comm::ShardSpec spec = spec_of(whole, Kind::run, group.rank(), 2);
    ShardedState state = {.model = {{"w", local_of(whole, spec), spec},
                                    {"n", at::scalar_tensor(0, at::kLong), comm::ShardSpec::whole({})}}};
    load_sharded(temporary / "step", state, group);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1: "), HasSubstr(path), HasSubstr("damaged")));
  EXPECT_THAT(message, testing::Not(HasSubstr("rank 0: ")));
}

TEST(ShardedDamage, AnIndexThatLiesIsRefused) {
  const TemporaryFolder temporary;
  save_small(temporary / "step");
  const std::string path = temporary / "step/index.json", text = read_bytes(path);
  const auto error = [&](const std::string& from, const std::string& to) {
    write_bytes(path, mended(replaced(text, from, to)));
    return error_of([&] { load(temporary / "step"); });
  };
  EXPECT_THAT(error("\"version\": 1", "\"version\": 2"),
              AllOf(HasSubstr("version 2"), HasSubstr("Use a newer Bellows")));
  EXPECT_THAT(error("bellows.sharded_checkpoint", "bellows.other"), HasSubstr("expected the format"));
  EXPECT_THAT(error("\"sizes\":[8,5]", "\"sizes\":[8,6]"), HasSubstr("are missing"));
  EXPECT_THAT(error("\"length\":[20]", "\"length\":[19]"), HasSubstr("elements 19 to 20 of 40 are missing"));
  EXPECT_THAT(error("\"offset\":[20]", "\"offset\":[21]"), HasSubstr("expected a part"));
  EXPECT_THAT(error("\"file\":1", "\"file\":2"), HasSubstr("found number 2"));
  EXPECT_THAT(error("rank-00000-of-00002.safetensors", "../rank-00000-of-00002.safetensors"),
              HasSubstr("file in the same folder"));
  EXPECT_THAT(error("\"F32\"", "\"F4\""), HasSubstr("dtype with a whole number of bytes"));
  EXPECT_THAT(error("\"F32\"", "\"I32\""), HasSubstr("does not belong to this checkpoint"));
  for (const char* strides : {"[4]", "[1,9]", "[0,13]", "[2,7]"}) {  // the last ends where a dense one does
    EXPECT_THAT(error("\"sizes\":[8,5]", std::string("\"sizes\":[10,4],\"strides\":") + strides),
                HasSubstr("expected strides of a dense tensor"));
  }
  EXPECT_EQ(error("\"sizes\":[8,5]", "\"sizes\":[10,4],\"strides\":[1,10]"), "");
  EXPECT_THAT(error("model/n", "model/w"), HasSubstr("occurs twice"));
  EXPECT_THAT(error("\"step\": 5", "\"step\": -5"), HasSubstr("a whole number"));
  write_bytes(path, "");
  EXPECT_THAT(error_of([&] { load(temporary / "step"); }), HasSubstr("The file is truncated"));
  EXPECT_THAT(error_of([&] { load(temporary.path()); }), HasSubstr("has no index.json"));
}

}  // namespace bellows::checkpoint
