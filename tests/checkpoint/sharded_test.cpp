#include "bellows/checkpoint/sharded.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/comm/collectives.h"
#include "bellows/io/tensors/safetensors.h"
#include "tests/checkpoint/sharded_sample.h"

namespace bellows::checkpoint {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void save_sample(const std::string& path, int shift, int ranks) {
  run_ranks(ranks, [&](const comm::Group& group) {
    save_sharded(path, sample_sharded(shift, group.rank(), group.size()), group);
  });
}

ShardedState state_of(const Parts& model) {
  return {.model = model, .step = 1};
}

Part part(const std::string& name, const std::vector<int64_t>& sizes, int64_t begin, int64_t count) {
  return {name, at::ones({count}), comm::ShardSpec::run(sizes, begin, count)};
}

using ModelOfRank = std::function<Parts(int rank)>;

/// What all of `ranks` say when they save what each of `models` gives; nothing may be written.
std::vector<std::string> save_errors(int ranks, const std::vector<ModelOfRank>& models) {
  const TemporaryFolder temporary;
  std::vector<RankAction> actions;
  actions.reserve(models.size());
  for (const ModelOfRank& model : models) {
    actions.emplace_back([&temporary, &model](const comm::Group& group) {
      save_sharded(temporary / "step", state_of(model(group.rank())), group);
    });
  }
  std::vector<std::string> messages = errors_of_ranks(ranks, actions);
  EXPECT_THAT(names_in(temporary.path()), IsEmpty());
  return messages;
}

Part box(const std::vector<int64_t>& sizes, const std::vector<int64_t>& offset, const std::vector<int64_t>& length) {
  return {"w", at::ones(length), {sizes, offset, length}};
}

}  // namespace

TEST(Sharded, LoadsOnAnyNumberOfRanksHoweverTensorsAreHeld) {
  const TemporaryFolder temporary;
  const auto path = [&](int shift) { return temporary / ("step" + std::to_string(shift)); };
  run_ranks(4, [&](const comm::Group& group) {
    for (int shift = 0; shift < kinds; ++shift)
      save_sharded(path(shift), sample_sharded(shift, group.rank(), 4), group);
  });
  for (const int ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      for (int shift = 0; shift < kinds; ++shift) {
        for (const int other : {shift, shift + 1 + ranks % 3}) {
          SCOPED_TRACE(c10::str("saved as ", shift, ", loaded as ", other, " on ", ranks));
          const ShardedState expected = sample_sharded(other, group.rank(), ranks);
          ShardedState state = emptied(expected);
          load_sharded(path(shift), state, group);
          expect_equal(state, expected);
          EXPECT_EQ(state.rng.size(), group.rank() < 4 ? 1u : 0u);
          for (const auto& [device, generator] : state.rng)
            EXPECT_TRUE(at::equal(generator, expected.rng[0].second)) << device;
        }
      }
    });
  }
}

TEST(Sharded, OneProcessReadsAllWithStrides) {
  const TemporaryFolder temporary;
  run_ranks(3, [&](const comm::Group& group) {
    ShardedState state = sample_sharded(0, group.rank(), 3);
    state.model = whole_parts(sample_wholes());
    save_sharded(temporary / "step", state, group);
  });
  const State state = load(temporary / "step");
  const NamedTensors expected = sample_wholes();
  ASSERT_EQ(state.model.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(state.model[i].first, expected[i].first);
    EXPECT_EQ(state.model[i].second.strides(), expected[i].second.strides()) << expected[i].first;
    EXPECT_TRUE(at::equal(state.model[i].second, expected[i].second)) << expected[i].first;
    EXPECT_TRUE(at::equal(state.optimizer[i].second, expected[i].second)) << expected[i].first;
  }
  EXPECT_EQ(state.step, 1200);
  EXPECT_EQ(state.recipe, "lr: 0.1  # über alles\n");
  ASSERT_EQ(state.rng.size(), 1u);
  EXPECT_TRUE(at::equal(state.rng[0].second, at::zeros({16}, at::kByte)));
}

TEST(Sharded, AFileOfOneProcessLoadsOnManyRanks) {
  const TemporaryFolder temporary;
  const NamedTensors wholes = sample_wholes();
  save(temporary / "one.pt",
       {.model = wholes, .optimizer = wholes, .rng = {{"cpu", at::ones({4}, at::kByte)}}, .step = 9});
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const comm::Group& group) {
      const ShardedState expected = sample_sharded(1, group.rank(), ranks);
      ShardedState state = emptied(expected);
      state.extra.clear();
      load_sharded(temporary / "one.pt", state, group);
      expect_equal(state.model, expected.model);
      expect_equal(state.optimizer, expected.optimizer);
      EXPECT_EQ(state.step, 9);
      EXPECT_EQ(state.rng.size(), group.rank() == 0 ? 1u : 0u);
    });
  }
}

TEST(Sharded, ReplicasAreWrittenOnceInEqualShares) {
  const TemporaryFolder temporary;
  const NamedTensors wholes = {
      {"large", at::randn({1000, 500})}, {"small", at::ones({10})}, {"middle", at::randn({50'000})}};
  run_ranks(4,
            [&](const comm::Group& group) { save_sharded(temporary / "step", state_of(whole_parts(wholes)), group); });
  const SavedCheckpoint saved(temporary / "step");
  std::vector<int64_t> elements(4);
  for (const SavedTensor& tensor : saved.index().tensors) {
    for (const SavedPiece& piece : tensor.pieces) elements[piece.file] += piece.spec.numel();
  }
  EXPECT_EQ(elements[0] + elements[1] + elements[2] + elements[3], 550'010);
  for (const int64_t count : elements) EXPECT_NEAR(static_cast<double>(count), 550'010 / 4., 16);
  EXPECT_EQ(saved.find("model/small")->pieces.size(), 1u);
}

// Batch norm statistics that nobody synchronised: those of one rank, not some of each.
TEST(Sharded, SmallReplicasAreThoseOfTheLowestRank) {
  const TemporaryFolder temporary;
  run_ranks(3, [&](const comm::Group& group) {
    NamedTensors model = {{"large", at::ones({90'000})}};
    for (int i = 0; i < 5; ++i) model.emplace_back(c10::str("bn", i), at::full({2000}, group.rank()));
    save_sharded(temporary / "step", state_of(whole_parts(model)), group);
  });
  const State state = load(temporary / "step");
  for (size_t i = 1; i < state.model.size(); ++i)
    EXPECT_EQ(state.model[i].second.abs().max().item<double>(), 0) << state.model[i].first;
}

TEST(Sharded, GroupsOfRanksMayHoldTheSameShard) {
  const TemporaryFolder temporary;
  const at::Tensor rows = at::randn({400, 100}), columns = at::randn({400, 100});
  const auto parts = [&](int rank) {
    const comm::ShardSpec a = spec_of(rows, Kind::rows, rank % 2, 2), b = spec_of(columns, Kind::columns, rank % 2, 2);
    return Parts{{"rows", local_of(rows, a), a}, {"columns", local_of(columns, b), b}};
  };
  run_ranks(4,
            [&](const comm::Group& group) { save_sharded(temporary / "step", state_of(parts(group.rank())), group); });
  const State state = load(temporary / "step");
  EXPECT_TRUE(at::equal(state.model[0].second, rows));
  EXPECT_TRUE(at::equal(state.model[1].second, columns));
}

TEST(Sharded, WhatRanksDoNotHoldTogetherIsNamed) {
  const auto of_three = save_errors(3, {[](int rank) {
                                          return Parts{part("w", {3, 10}, rank * 10, rank == 1 ? 7 : 10)};
                                        },
                                        [](int rank) {
                                          return Parts{part("w", {3, 10}, rank * 10, 10 + 2 * (rank == 1))};
                                        }});
  EXPECT_THAT(of_three[0], AllOf(HasSubstr("model/w: elements 17 to 20 of 30 are missing"), HasSubstr("rank 2")));
  EXPECT_THAT(of_three[1], HasSubstr("model/w: elements 20 to 22 are held twice, by rank 1 and by rank 2"));
  const auto of_two = save_errors(
      2, {[](int rank) { return Parts{part("w", {30}, rank * 10, 10)}; },
          [](int rank) { return Parts{part("w", {20 + rank}, rank * 10, 10 + rank)}; },
          [](int rank) {
            return Parts{{"w", at::ones({10}, rank ? at::kHalf : at::kFloat), part("w", {20}, rank * 10, 10).spec}};
          },
          [](int rank) {
            return Parts{box({4, 4}, {0, rank * 2}, {4, 2 - rank})};
          },
          [](int rank) {
            return Parts{box({4, 4}, {0, rank}, {4, 3})};
          },
          [](int) {
            return Parts{part("w", {4}, 0, 4), part("w", {4}, 0, 4)};
          }});
  EXPECT_THAT(of_two[0], HasSubstr("elements 20 to 30 of 30 are missing"));
  EXPECT_THAT(of_two[1], HasSubstr("model/w: rank 0 has F32 [20], rank 1 has F32 [21]"));
  EXPECT_THAT(of_two[2], HasSubstr("model/w: rank 0 has F32 [20], rank 1 has F16 [20]"));
  EXPECT_THAT(of_two[3], HasSubstr("model/w: 4 of 16 elements are missing"));
  EXPECT_THAT(of_two[4], HasSubstr("the boxes of rank 0 and of rank 1 overlap"));
  EXPECT_THAT(of_two[5], HasSubstr("has the same part twice"));
}

TEST(Sharded, PartsThatCannotBeSavedAreNamedOnAllRanks) {
  const comm::ShardSpec two = comm::ShardSpec::whole({2});
  const Parts bad = {{"w", {}, two},
                     {"w", at::ones({3}), two},
                     {"w", at::ones({2, 3}).t(), comm::ShardSpec::whole({2, 3})},
                     part("w", {8}, 5, 4),
                     {"w", at::ones({2}, at::kComplexDouble), two},
                     {"w\xff", at::ones({2}), two}};
  std::vector<ModelOfRank> models;
  for (const Part& one : bad)
    models.emplace_back([&one](int rank) { return rank == 1 ? Parts{one} : Parts{part("v", {4}, 0, 4)}; });
  const std::vector<std::string> said = save_errors(3, models);
  EXPECT_THAT(said[0], AllOf(HasSubstr("rank 1"), HasSubstr("undefined")));
  EXPECT_THAT(said[1], HasSubstr("rank 1: model/w: expected a tensor"));
  EXPECT_THAT(said[2], HasSubstr("found sizes [3, 2]"));
  EXPECT_THAT(said[3], HasSubstr("inside a tensor of sizes [8]"));
  EXPECT_THAT(said[4], HasSubstr("dtype"));
  EXPECT_THAT(said[5], HasSubstr("UTF-8"));
  const TemporaryFolder temporary;
  EXPECT_THAT(
      error_of_ranks(
          2, [&](const comm::Group& group) { save_sharded(temporary / "step", {.step = 5 + group.rank()}, group); }),
      AllOf(HasSubstr("rank 0 is at step"), HasSubstr("[5,0,0,0]"), HasSubstr("[6,0,0,0]")));
}

TEST(Sharded, ARankThatCannotWriteFailsAllAndLeavesWhatWasThere) {
  const TemporaryFolder temporary;
  const auto save_rows = [&](int64_t rows_of_2) {
    run_ranks(3, [&](const comm::Group& group) {
      const int64_t begin = group.rank() * 10, count = group.rank() == 2 ? rows_of_2 : 10;
      const comm::ShardSpec rows{{20 + rows_of_2, 100}, {begin, 0}, {count, 100}};
      save_sharded(temporary / "step", state_of({{"w", at::full({count, 100}, begin), rows}}), group);
    });
  };
  save_rows(10);
  const std::vector<std::string> before = names_in(temporary / "step");
  {
    const FileSizeLimit limit(64 << 10);
    EXPECT_THAT(error_of([&] { save_rows(1000); }),
                AllOf(HasSubstr("rank 2: cannot write"), HasSubstr("rank-00002-of-00003.safetensors"),
                      HasSubstr("File too large"), HasSubstr("was not saved")));
  }
  EXPECT_THAT(names_in(temporary.path()), ElementsAre("step"));
  EXPECT_EQ(names_in(temporary / "step"), before);
  EXPECT_EQ(load(temporary / "step").model[0].second.size(0), 30);
  save_rows(20);  // takes the place of what has the name
  EXPECT_THAT(names_in(temporary.path()), ElementsAre("step"));
  EXPECT_EQ(load(temporary / "step").model[0].second.size(0), 40);
}

TEST(Sharded, WhatDoesNotFitIsNamedAndNothingIsChanged) {
  const TemporaryFolder temporary;
  save_sample(temporary / "step", 0, 2);
  const std::vector<std::function<void(int rank, ShardedState& state)>> changes = {
      [](int, ShardedState& state) { state.model[1].name = "fc.wight"; },
      [](int rank, ShardedState& state) {
        if (rank == 2) state.extra.push_back({"more", at::ones({2}), comm::ShardSpec::whole({2})});
      },
      [](int, ShardedState& state) {
        state.optimizer[0] = {"conv.weight", at::ones({2}), comm::ShardSpec::whole({2})};
      },
      [](int, ShardedState& state) { state.model[0].local = at::zeros(state.model[0].local.sizes(), at::kHalf); },
      [&](int rank, ShardedState&) {
        if (rank == 0) write_bytes(temporary / "step/rank-00001-of-00002.safetensors", "x");
      }};
  std::vector<RankAction> actions;
  actions.reserve(changes.size());
  for (const auto& change : changes) {
    actions.emplace_back([&](const comm::Group& group) {
      ShardedState state = emptied(sample_sharded(0, group.rank(), 3));
      change(group.rank(), state);
      comm::barrier(group);
      const Parts model = state.model;
      try {
        load_sharded(temporary / "step", state, group);
      } catch (...) {
        for (const Part& one : model) EXPECT_EQ(one.local.to(at::kDouble).abs().sum().item<double>(), 0);
        EXPECT_EQ(state.step, 0);
        throw;
      }
    });
  }
  const std::vector<std::string> said = errors_of_ranks(3, actions);
  EXPECT_THAT(said[0], AllOf(HasSubstr("missing (1): model/fc.wight"), HasSubstr("unexpected (1): model/fc.weight")));
  EXPECT_THAT(said[1], HasSubstr("missing (1): extra/more"));
  EXPECT_THAT(said[2], HasSubstr("optimizer/conv.weight: file F32 [4, 3, 5, 6], wanted F32 [2]"));
  EXPECT_THAT(said[3], HasSubstr("model/conv.weight: file F32 [4, 3, 5, 6], wanted F16"));
  EXPECT_THAT(said[4], AllOf(HasSubstr("rank-00001-of-00002.safetensors"), HasSubstr("found 1")));
}

TEST(Sharded, ASectionThatNobodyWantsIsPassedOver) {
  const TemporaryFolder temporary;
  save_sample(temporary / "step", 0, 2);
  run_ranks(2, [&](const comm::Group& group) {
    const ShardedState expected = sample_sharded(2, group.rank(), 2);
    ShardedState state = {.model = emptied(expected).model};
    load_sharded(temporary / "step", state, group);
    expect_equal(state.model, expected.model);
  });
}

TEST(Sharded, ExportsTheModelAsOneFile) {
  const TemporaryFolder temporary;
  save_sample(temporary / "step", 1, 3);
  save(temporary / "one.pt", {.model = sample_wholes(), .optimizer = sample_wholes()});
  for (const char* path : {"step", "one.pt"}) {
    export_safetensors(temporary / path, temporary / "model.safetensors");
    const NamedTensors read = io::load_safetensors(temporary / "model.safetensors");
    EXPECT_EQ(read.size(), sample_wholes().size());
    for (const auto& [name, tensor] : sample_wholes()) {
      const auto found =
          std::find_if(read.begin(), read.end(), [&, &wanted = name](const auto& one) { return one.first == wanted; });
      ASSERT_NE(found, read.end()) << name;
      EXPECT_TRUE(at::equal(found->second, tensor)) << name;
    }
  }
}

TEST(Sharded, ExportsTheModelAsNumberedFiles) {
  const TemporaryFolder temporary;
  save_sample(temporary / "step", 1, 3);
  const std::vector<std::string> files = export_safetensors(temporary / "step", temporary / "model.safetensors", 200);
  ASSERT_GT(files.size(), 2u);
  const std::string count = c10::str("0000", files.size() - 1);
  EXPECT_EQ(files.front(), temporary / ("model-00001-of-" + count + ".safetensors"));
  EXPECT_EQ(files.back(), temporary / "model.safetensors.index.json");
  const auto index = nlohmann::json::parse(read_bytes(files.back()));
  size_t tensors = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i + 1 < files.size(); ++i) {
    for (const auto& [name, tensor] : io::load_safetensors(files[i])) {
      EXPECT_EQ(temporary / index["weight_map"][name].get<std::string>(), files[i]) << name;
      bytes += tensor.nbytes();
      ++tensors;
      for (const auto& [wanted, expected] : sample_wholes()) {
        if (wanted == name) {
          EXPECT_TRUE(at::equal(tensor, expected)) << name;
        }
      }
    }
  }
  EXPECT_EQ(tensors, sample_wholes().size());
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
}

// For sharded.sh: Python reads what is written here.
TEST(Sharded, WritesForPython) {
  const TemporaryFolder temporary;
  const char* given = std::getenv("BELLOWS_SHARDED_OUT");
  const std::string out = given ? given : temporary.path();
  save_sample(out + "/step", 2, 3);
  export_safetensors(out + "/step", out + "/model.safetensors");
  NamedTensors wholes;
  for (const auto& [name, tensor] : sample_wholes()) wholes.emplace_back(name, tensor.contiguous());
  io::save_safetensors(out + "/expected.safetensors", wholes);
  EXPECT_THAT(names_in(out + "/step"),
              ElementsAre("index.json", "rank-00000-of-00003.safetensors", "rank-00001-of-00003.safetensors",
                          "rank-00002-of-00003.safetensors"));
}

}  // namespace bellows::checkpoint
