#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "failure.h"
#include "forked.h"
#include "output_width.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::HasSubstr;

const std::string published_folder = BELLOWS_SOURCE_DIR "/bench/simulator/";

/// The arguments for Llama 3.1 8B on 8 GPUs.
std::vector<std::string> simulate_llama(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"simulate",    published_folder + "llama-3.1-8b.json",
                                        "--cluster",   published_folder + "grand_teton.yaml",
                                        "--batch",     "16",
                                        "--seq",       "8192",
                                        "--recompute", "half"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST(SimulateCommand, DividesTheTimeAndTheMemory) {
  const Outcome outcome = run_forked(simulate_llama({"--mesh", "{shard: 4, tensor: 2}", "--zero", "3"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"8030261248", "Mesh: {shard: 4, tensor: 2}", "forward and backward",
                            "recomputed activations", "exchange of tensor", "optimizer state", "The step fits into"})
    EXPECT_THAT(outcome.out, HasSubstr(words));
  expect_narrow(outcome.out);
  const auto json =
      nlohmann::json::parse(run_forked(simulate_llama({"--mesh", "shard: 8", "--zero", "3", "--json"})).out);
  EXPECT_NEAR(json["tokens_per_second_per_rank"].get<double>(), 6667, 67);
  EXPECT_EQ(json["mesh"]["shard"], 8);
  double sum = 0;
  for (const auto& [part, seconds] : json["seconds"].items()) sum += part == "total" ? 0 : seconds.get<double>();
  EXPECT_NEAR(sum, json["seconds"]["total"].get<double>(), 1e-9);
}

TEST(SimulateCommand, ComparesAllMeshes) {
  const Outcome outcome = run_forked(simulate_llama({"--ranks", "8"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fastest"));
  expect_narrow(outcome.out);
  const auto json = nlohmann::json::parse(run_forked(simulate_llama({"--ranks", "8", "--json"})).out);
  EXPECT_GE(json["candidates"].size(), 10u);
  EXPECT_EQ(json["choice"], json["candidates"][0]);
}

TEST(SimulateCommand, MeasuresThisMachine) {
  const Scratch folder;
  const Outcome measured = run_bellows({"simulate", "--measure"});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  std::ofstream(folder / "here.yaml") << measured.out;
  const Outcome outcome = run_forked({"simulate", "gpt2", "--cluster", folder / "here.yaml", "--batch", "4", "--seq",
                                      "128", "--dtype", "fp32", "--mesh", "data: 2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("gpt2: 124439808 parameters"));
}

TEST(SimulateCommand, NamesWrongArguments) {
  const auto expect_usage = [](const std::vector<std::string>& arguments, const char* words) {
    expect_failure(run_forked(arguments), 2, words);
  };
  expect_usage({"simulate"}, "the model is missing");
  expect_usage({"simulate", "gpt2"}, "exactly one of --mesh and --ranks");
  expect_usage({"simulate", "gpt2", "--mesh", "data: 2", "--ranks", "2"}, "exactly one of --mesh and --ranks");
  expect_usage({"simulate", "gpt2", "--measure"}, "MODEL cannot be combined with --measure");
  expect_usage({"simulate", "--measure", "--batch", "8"}, "--measure cannot be combined with --batch");
  expect_usage({"simulate", "--measure", "--json"}, "--measure cannot be combined with --json");
  expect_usage(simulate_llama({"--mesh", "{shard: 8}"}), "needs --zero 1, 2 or 3");
  expect_usage({"simulate", "resnet18", "--ranks", "2"}, "expected a transformer");
  expect_usage(simulate_llama({"--mesh", "{tensors: 2}"}), "no axis is called");
  expect_usage(simulate_llama({"--mesh", "{tensor: 3}"}), "attention heads, 32");
  expect_usage(simulate_llama({"--mesh", "{data: 2}", "--dtype", "fp32"}), "flops of fp32");
  expect_usage({"simulate", "gpt2", "--cluster", "/no/such.yaml", "--ranks", "2"}, "/no/such.yaml");
}

}  // namespace bellows::cli
