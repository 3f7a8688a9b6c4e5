#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/folder.h"
#include "bellows/io/tensors/safetensors.h"
#include "tests/cli/forked.h"
#include "tests/cli/process.h"

namespace bellows::cli {

using ::testing::AllOf;
using ::testing::HasSubstr;

namespace {

/// Two checkpoints of one process.
void save_two(const std::string& folder) {
  checkpoint::Folder run(folder);
  for (const int64_t step : {5, 7})
    run.save({.model = {{"w", at::full({3, 4}, step, at::kFloat)}}, .optimizer = {{"m", at::ones({6})}}, .step = step});
}

}  // namespace

TEST(CheckpointCommand, SaysWhatIsInOne) {
  const Scratch scratch;
  save_two(scratch / "run");
  const Outcome text = run_bellows({"checkpoint", "info", scratch / "run", "--verify"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("step-000000000007.pt\nstep 7, epoch 0, batch 0, written by 1 rank\n"),
                    HasSubstr("model           1 tensors              48 bytes\n"), HasSubstr("All checksums match.")));
  const Outcome json = run_bellows({"checkpoint", "info", scratch / "run/step-000000000005.pt", "--json"});
  const auto info = nlohmann::json::parse(json.out);
  EXPECT_EQ(info["step"], 5);
  EXPECT_EQ(info["verified"], false);
  EXPECT_EQ(info["tensors"][0]["name"], "model/w");
  EXPECT_EQ(info["tensors"][0]["bytes"], 48);
}

TEST(CheckpointCommand, ExportsTheWeights) {
  const Scratch scratch;
  save_two(scratch / "run");
  const Outcome outcome = run_bellows({"checkpoint", "export", scratch / "run", scratch / "w.safetensors"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const NamedTensors weights = io::load_safetensors(scratch / "w.safetensors");
  ASSERT_EQ(weights.size(), 1u);
  EXPECT_EQ(weights[0].first, "w");
  EXPECT_TRUE(at::equal(weights[0].second, at::full({3, 4}, 7, at::kFloat)));
}

TEST(CheckpointCommand, WrongUseAndWhatIsNoCheckpoint) {
  const Scratch scratch;
  EXPECT_EQ(run_forked({"checkpoint"}).exit_code, 2);
  EXPECT_EQ(run_forked({"checkpoint", "export", scratch.path()}).exit_code, 2);
  const Outcome empty = run_bellows({"checkpoint", "info", scratch.path()});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.err, AllOf(HasSubstr("has no index.json"), HasSubstr(scratch.path())));
  std::filesystem::create_directory(scratch / "step-000000000001");
  std::ofstream(scratch / "step-000000000001/index.json") << "{}";
  const Outcome damaged = run_bellows({"checkpoint", "info", scratch / "step-000000000001"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.err, HasSubstr("step-000000000001/index.json: "));
}

}  // namespace bellows::cli
