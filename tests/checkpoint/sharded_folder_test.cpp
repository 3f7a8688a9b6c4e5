#include "bellows/checkpoint/sharded_folder.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "bellows/comm/collectives.h"
#include "tests/checkpoint/sharded_sample.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// All values say which step they are of. "shared" is held by all, "own" in runs.
ShardedState state_at(int64_t step, const comm::Group& group) {
  const at::Tensor own = at::full({1000, 7}, step, at::kDouble), shared = at::full({150, 200}, step, at::kFloat);
  const comm::ShardSpec spec = spec_of(own, Kind::run, group.rank(), group.size());
  return {.model = whole_parts({{"shared", shared}}),
          .optimizer = {{"own", local_of(own, spec), spec}},
          .rng = {{"cpu", at::full({4}, group.rank(), at::kByte)}},
          .step = step,
          .consumed = 10 * step};
}

void expect_step(const ShardedState& state, int64_t step) {
  EXPECT_EQ(state.step, step);
  for (const Parts* parts : {&state.model, &state.optimizer}) {
    for (const Part& part : *parts)
      EXPECT_TRUE(at::equal(part.local, at::full_like(part.local, static_cast<double>(step)))) << part.name;
  }
}

std::string name_of(const std::optional<std::string>& path) {
  return path ? std::filesystem::path(*path).filename().string() : "";
}

}  // namespace

TEST(ShardedFolder, KeepsTheNewestAndLoadsThem) {
  const TemporaryFolder temporary;
  run_ranks(3, [&](const comm::Group& group) {
    ShardedFolder folder(temporary / "new/run", group, 2);
    ShardedState state = state_at(0, group);
    EXPECT_FALSE(folder.newest(state));
    EXPECT_FALSE(folder.newest());
    for (const int64_t step : {5, 100, 20}) folder.save(state_at(step, group));
    EXPECT_EQ(name_of(folder.newest(state)), "step-000000000100");
    expect_step(state, 100);
    EXPECT_EQ(state.consumed, 1000);
    EXPECT_EQ(folder.newest(), folder.path_of(100));
  });
  EXPECT_THAT(names_in(temporary / "new/run"), ElementsAre(".lock", "step-000000000020", "step-000000000100"));
  run_ranks(1, [&](const comm::Group& group) {
    ShardedFolder folder(temporary / "new/run", group);
    ShardedState state = state_at(0, group);
    folder.newest(state);
    expect_step(state, 100);
  });
}

TEST(ShardedFolder, GrowsFromOneProcessAndShrinksToOne) {
  const TemporaryFolder temporary;
  const auto one = [](int64_t step) {
    return State{.model = {{"shared", at::full({150, 200}, step, at::kFloat)}},
                 .optimizer = {{"own", at::full({1000, 7}, step, at::kDouble)}},
                 .step = step};
  };
  Folder(temporary.path(), 2).save(one(1));
  run_ranks(3, [&](const comm::Group& group) {
    ShardedFolder folder(temporary.path(), group, 2);
    ShardedState state = state_at(0, group);
    EXPECT_EQ(name_of(folder.newest(state)), "step-000000000001.pt");
    expect_step(state, 1);
    folder.save(state_at(2, group));
  });
  Folder folder(temporary.path(), 2);
  const auto state = folder.newest();
  ASSERT_TRUE(state);
  EXPECT_EQ(state->step, 2);
  EXPECT_TRUE(at::equal(state->optimizer[0].second, one(2).optimizer[0].second));
  folder.save(one(3));
  EXPECT_THAT(names_in(temporary.path()), ElementsAre(".lock", "step-000000000002", "step-000000000003.pt"));
  folder.save(one(4));
  EXPECT_THAT(names_in(temporary.path()), ElementsAre(".lock", "step-000000000003.pt", "step-000000000004.pt"));
}

TEST(ShardedFolder, DamagedNewestIsPassedOverByAllRanksAndDoesNotCount) {
  const TemporaryFolder temporary;
  const auto damage = [&](const std::string& file) {
    std::string bytes = read_bytes(temporary / file);
    bytes[bytes.size() - 50] ^= 4;
    write_bytes(temporary / file, bytes);
  };
  const CapturedLog log;
  run_ranks(3, [&](const comm::Group& group) {
    ShardedFolder folder(temporary.path(), group, 2);
    for (const int64_t step : {10, 20}) folder.save(state_at(step, group));
    if (group.rank() == 0) damage("step-000000000020/rank-00001-of-00003.safetensors");
    comm::barrier(group);
    ShardedState state = state_at(0, group);
    EXPECT_EQ(name_of(folder.newest(state)), "step-000000000010");
    expect_step(state, 10);
    EXPECT_EQ(name_of(folder.newest()), "step-000000000010");
    folder.save(state_at(15, group));
  });
  EXPECT_THAT(log.text(),
              AllOf(HasSubstr("step-000000000020 is damaged and skipped"), HasSubstr("rank-00001-of-00003")));
  EXPECT_THAT(names_in(temporary.path()),
              ElementsAre(".lock", "step-000000000010", "step-000000000015", "step-000000000020"));
  damage("step-000000000010/index.json");
  damage("step-000000000015/rank-00000-of-00003.safetensors");
  EXPECT_THAT(error_of_ranks(2,
                             [&](const comm::Group& group) {
                               ShardedFolder folder(temporary.path(), group);
                               ShardedState state = state_at(0, group);
                               folder.newest(state);
                             }),
              AllOf(HasSubstr("none of the 3 checkpoints"), HasSubstr("The newest one: rank "),
                    HasSubstr("rank-00001-of-00003")));
}

TEST(ShardedFolder, AStateOfAnotherKindIsAnErrorNotDamage) {
  const TemporaryFolder temporary;
  EXPECT_THAT(error_of_ranks(2,
                             [&](const comm::Group& group) {
                               ShardedFolder folder(temporary.path(), group);
                               folder.save(state_at(1, group));
                               ShardedState state = state_at(0, group);
                               state.model[0].name = "other";
                               folder.newest(state);
                             }),
              AllOf(HasSubstr("does not fit"), HasSubstr("model/other"), HasSubstr("model/shared")));
}

TEST(ShardedFolder, LeftoversGoAndASecondRunIsKeptOut) {
  const TemporaryFolder temporary;
  std::filesystem::create_directories(temporary / ".step-000000000007.partial-01234567");
  write_bytes(temporary / ".step-000000000007.partial-01234567/rank-00000-of-00002.safetensors", "half");
  write_bytes(temporary / "notes.txt", "mine");
  const Folder first(temporary.path());
  EXPECT_THAT(names_in(temporary.path()), ElementsAre(".lock", "notes.txt"));
  EXPECT_THAT(error_of_ranks(2, [&](const comm::Group& group) { ShardedFolder(temporary.path(), group); }),
              HasSubstr("another run"));
}

TEST(ShardedFolder, ARankThatSeesAnotherFileSystemIsNamed) {
  const TemporaryFolder temporary;
  EXPECT_THAT(error_of_ranks(3,
                             [&](const comm::Group& group) {
                               ShardedFolder(temporary / (group.rank() == 2 ? "elsewhere" : "here"), group);
                             }),
              AllOf(HasSubstr("rank 2: checkpoint: "),
                    HasSubstr("elsewhere, which rank 0 created, is not a folder on this machine")));
}

// Steps of training go on with collectives of their own while saves agree on theirs.
TEST(ShardedFolder, SavesInTheBackgroundWhileTheStateChanges) {
  const TemporaryFolder temporary;
  run_ranks(3, [&](const comm::Group& group) {
    ShardedFolder folder(temporary.path(), group, 100);
    ShardedState state = state_at(0, group);
    const auto fill = [&](int64_t value) {
      for (Parts* parts : {&state.model, &state.optimizer}) {
        for (Part& part : *parts) part.local.fill_(static_cast<double>(value));
      }
    };
    for (int64_t step = 1; step <= 6; ++step) {
      fill(step);
      state.step = step;
      folder.save_async(state);
      fill(-1);
      for (int i = 0; i < 20; ++i) comm::all_reduce(at::ones({1000}), group);
    }
    folder.wait();
    for (int64_t step = 1; step <= 6; ++step) {
      load_sharded(folder.list()[static_cast<size_t>(step) - 1], state, group);
      expect_step(state, step);
    }
  });
}

// An optimizer that has no state yet makes its parts by what was saved.
TEST(ShardedFolder, WhatIsWantedMayDependOnWhatWasSaved) {
  const TemporaryFolder temporary;
  run_ranks(2, [&](const comm::Group& group) {
    ShardedFolder folder(temporary.path(), group);
    folder.save(state_at(7, group));
    ShardedState state = state_at(0, group);
    state.optimizer.clear();
    folder.newest(state, [&](const ShardedIndex& saved, ShardedState& wanted) {
      for (const SavedTensor& tensor : saved.tensors) {
        if (tensor.name != "optimizer/own") continue;
        EXPECT_EQ(tensor.scalar_type(), at::kDouble);
        wanted.optimizer = whole_parts({{"own", at::zeros(tensor.sizes, tensor.scalar_type())}});
      }
    });
    ASSERT_EQ(state.optimizer.size(), 1u);
    expect_step(state, 7);
  });
}

TEST(ShardedFolder, AnErrorInTheBackgroundIsSaidOnceByAllRanks) {
  const TemporaryFolder temporary;
  std::array<std::vector<std::string>, 2> said;
  const FileSizeLimit limit(400 << 10);
  run_ranks(2, [&](const comm::Group& group) {
    std::vector<std::string>& mine = said[static_cast<size_t>(group.rank())];
    ShardedFolder folder(temporary.path(), group);
    folder.save_async(state_at(1, group));
    ShardedState large = state_at(2, group);
    if (group.rank() == 1) large.extra.push_back({"large", at::ones({200'000}), comm::ShardSpec::whole({200'000})});
    folder.save_async(large);
    mine.push_back(error_of([&] { folder.save_async(state_at(3, group)); }));
    mine.push_back(error_of([&] { folder.wait(); }));
    folder.save_async(state_at(4, group));
    folder.wait();
    ShardedState state = state_at(0, group);
    folder.newest(state);
    expect_step(state, 4);
  });
  EXPECT_THAT(said[0][0], AllOf(HasSubstr("rank 1: cannot write"), HasSubstr("step-000000000002")));
  EXPECT_EQ(said[0], said[1]);
  EXPECT_EQ(said[0][1], "");
  EXPECT_THAT(names_in(temporary.path()), ElementsAre(".lock", "step-000000000001", "step-000000000004"));
}

}  // namespace bellows::checkpoint
