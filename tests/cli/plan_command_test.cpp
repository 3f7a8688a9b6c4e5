#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "failure.h"
#include "forked.h"
#include "output_width.h"
#include "process.h"

namespace bellows::cli {

namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string whole_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_plan_failure(std::vector<std::string> arguments, int exit_code, const std::string& words) {
  arguments.insert(arguments.begin(), "plan");
  expect_failure(exit_code == 2 ? run_forked(arguments) : run_bellows(arguments), exit_code, words);
}

}  // namespace

TEST(PlanCommand, PrintsAnatomyTechniquesAndDecision) {
  const Scratch folder;
  const Outcome outcome =
      run_bellows({"plan", "--model", "encoder_decoder", "--batch", "16", "--set", "optimizer=adamw", "--memory", "4GB",
                   "--price-per-hour", "2", "--step-ms", "50", "--json", folder / "p.json", "--html", folder / "p.html",
                   "--trace", folder / "t.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"weights", "optimizer state", "activations", "predicted peak", "8-bit optimizer state",
                            "Recommendation: keep the recipe unchanged", "The step fits", "a million samples cost"}) {
    EXPECT_THAT(outcome.out, HasSubstr(words));
  }
  expect_narrow(outcome.out);
  const auto json = nlohmann::json::parse(whole_file(folder / "p.json"));
  int64_t sum = 0;
  for (const auto& [kind, bytes] : json["peak"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, json["predicted_peak_bytes"].get<int64_t>());
  EXPECT_NEAR(json["cost_per_sample"].get<double>(), 2.0 / 3600 * 0.05 / 16, 1e-9);
  EXPECT_TRUE(json["decision"]["fits"].get<bool>());
  EXPECT_GE(json["techniques"].size(), 10u);
  EXPECT_THAT(whole_file(folder / "p.html"), HasSubstr("Lifetime of each tensor"));
  EXPECT_TRUE(nlohmann::json::accept(whole_file(folder / "t.json")));
}

/// 640 thousand million parameters, in a process that never has 2 GB; libtorch itself takes a quarter of that.
TEST(PlanCommand, AModelLargerThanAllMachinesIsPlannedInSmall) {
  const Scratch folder;
  std::ofstream(folder / "huge.json") << R"({"model_type": "gpt2", "n_layer": 200, "n_embd": 16384, "n_head": 128})";
  const Outcome outcome = run_bellows({"plan", "--model", folder / "huge.json", "--batch", "32", "--seq", "1024",
                                       "--set", "optimizer=adamw", "--memory", "80GB"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::string words = outcome.out;
  std::ranges::replace(words, '\n', ' ');
  EXPECT_THAT(words,
              AllOf(HasSubstr("of 200 layers, 2 of 128 heads"), HasSubstr("No tensor of full size was allocated"),
                    HasSubstr("h.0 to 199 (200 equal)"), HasSubstr("Recommendation: no combination fits")));
  expect_narrow(outcome.out);
  EXPECT_LT(outcome.peak_bytes, 2'000'000'000);
  std::ofstream(folder / "wide.json") << R"({"model_type": "gpt2", "n_layer": 200, "n_embd": 16384, "n_head": 1})";
  expect_plan_failure({"--model", folder / "wide.json"}, 1, "n_embd = 16384");
}

TEST(PlanCommand, FitGivesARecipeThatTrainTakes) {
  const Scratch folder;
  const Outcome fits = run_bellows(
      {"plan", "--model", "digits_resnet", "--batch", "64", "--fit", "2600KB", "--json", folder / "p.json"});
  ASSERT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, AllOf(HasSubstr("# Predicted peak"), HasSubstr("gradient_accumulation_steps: ")));
  EXPECT_LE(nlohmann::json::parse(whole_file(folder / "p.json"))["predicted_peak_bytes"].get<int64_t>(), 2600 << 10);
  std::ofstream(folder / "r.yaml") << fits.out;
  const Outcome trained =
      run_bellows({"train", "--recipe", folder / "r.yaml", "--data", digits(), "--set", "epochs=1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const Outcome tight =
      run_bellows({"plan", "--model", "mlp", "--batch", "64", "--set", "optimizer=adamw", "--fit", "300KB"});
  EXPECT_THAT(tight.out, AnyOf(HasSubstr("but stores the moments with a relative error of about"),
                               HasSubstr("# The optimizer is different: tune lr")));
  expect_plan_failure({"--model", "digits_resnet", "--fit", "10.5KB"}, 1, "no recipe fits into 10.5 KiB");
}

TEST(PlanCommand, ComparesStrategiesForSeveralRanks) {
  const Scratch folder;
  const auto planned = [&](const std::string& memory, std::vector<std::string> link) {
    std::vector<std::string> arguments = {
        "plan",  "--model",         "bert-20m", "--batch", "8",      "--seq",          "64", "--ranks", "2",
        "--set", "optimizer=adamw", "--memory", memory,    "--json", folder / "p.json"};
    arguments.insert(arguments.end(), link.begin(), link.end());
    const Outcome outcome = run_bellows(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    expect_narrow(outcome.out);
    return std::pair(outcome.out, nlohmann::json::parse(whole_file(folder / "p.json"))["strategy"]);
  };
  const auto [text, strategy] = planned("16GB", {"--link-gbps", "8"});
  EXPECT_THAT(text, AllOf(HasSubstr("Strategies for 2 ranks with 16.0 GiB of memory each:"), HasSubstr("exchange"),
                          HasSubstr("as set by --link-gbps"), HasSubstr("Strategy: DDP. DDP needs"),
                          HasSubstr("context parallelism")));
  EXPECT_EQ(strategy["data_parallel"], "ddp");
  EXPECT_EQ(strategy["link"]["bytes_per_second"], 1e9);
  EXPECT_FALSE(strategy["link"]["measured"].get<bool>());
  ASSERT_GE(strategy["rows"].size(), 4u);
  for (const auto& row : strategy["rows"]) {
    EXPECT_TRUE(row["fits"].get<bool>()) << row;
    EXPECT_NEAR(row["exchange_seconds"].get<double>(), row["bytes_sent_per_step"].get<double>() / 1e9, 1e-9) << row;
  }
  const auto [no_text, no_strategy] = planned("1MB", {});
  EXPECT_THAT(no_text, AllOf(HasSubstr("Strategy: none."), ::testing::Not(HasSubstr("exchange")), HasSubstr("ZeRO-3")));
  EXPECT_TRUE(no_strategy["choice"].is_null());
  EXPECT_TRUE(no_strategy["needed_ranks"].is_null());
  EXPECT_TRUE(no_strategy["rows"][0]["exchange_seconds"].is_null());
}

TEST(PlanCommand, ComparesTheCostOnOtherMachines) {
  const Scratch folder;
  std::ofstream(folder / "prices.yaml")
      << "currency: EUR\nmachines:\n"
         "  - {name: small, price_per_hour: 1, memory_bytes: 1000, memory_bytes_per_second: 1e9, flops: {fp32: 1e9}}\n"
         "  - {name: without fp32, price_per_hour: 1, memory_bytes: 1e12, memory_bytes_per_second: 1e12, flops: {bf16: "
         "1e15}}\n"
         "  - {name: large, price_per_hour: 2, memory_bytes: 1e12, memory_bytes_per_second: 1e12, flops: {fp32: "
         "1e12}}\n";
  const Outcome outcome =
      run_bellows({"plan", "--model", "digits_resnet", "--batch", "32", "--step-ms", "50", "--prices",
                   folder / "prices.yaml", "--epoch-samples", "1000", "--set", "epochs=3", "--set",
                   "gradient_accumulation_steps=4", "--price-per-hour", "7.2", "--json", folder / "p.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("cost in EUR"), HasSubstr("Cheapest machine: large."),
                                 HasSubstr("of its measured roofline")));
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80u) << line;
  const auto json = nlohmann::json::parse(whole_file(folder / "p.json"));
  EXPECT_DOUBLE_EQ(json["cost_per_sample"].get<double>(), 0.002 * 0.05 / (4 * 32));  // a step has four batches
  const auto& machines = json["machines"];
  EXPECT_EQ(machines["cheapest"], "large");
  EXPECT_FALSE(machines["rows"][0]["fits"].get<bool>());
  EXPECT_TRUE(machines["rows"][1]["step_seconds"].is_null());
  const auto large = machines["rows"][2];
  const double seconds = large["step_seconds"].get<double>();
  EXPECT_NEAR(seconds * machines["roofline_share"].get<double>(), large["best_step_seconds"].get<double>(), 1e-12);
  EXPECT_NEAR(large["cost_per_sample"].get<double>(), seconds * 2 / 3600 / 32, 1e-15);
  EXPECT_NEAR(large["cost_to_target"].get<double>(), 3000 * large["cost_per_sample"].get<double>(), 1e-12);
}

TEST(PlanCommand, TakesTheEpochsOfAPriceFromALog) {
  const Scratch folder;
  std::ofstream(folder / "prices.yaml")
      << "currency: EUR\nmachines:\n"
         "  - {name: one, price_per_hour: 2, memory_bytes: 1e12, memory_bytes_per_second: 1e12, flops: {fp32: 1e12}}\n";
  std::ofstream(folder / "log.jsonl") << "{\"step\": 1, \"epoch\": 0, \"eval_accuracy\": 0.5}\n"
                                         "{\"step\": 2, \"epoch\": 1, \"eval_accuracy\": 0.9}\n";
  std::vector<std::string> command = {"plan",
                                      "--model",
                                      "mlp",
                                      "--batch",
                                      "32",
                                      "--prices",
                                      folder / "prices.yaml",
                                      "--log",
                                      folder / "log.jsonl",
                                      "--epoch-samples",
                                      "1000",
                                      "--set",
                                      "epochs=7"};
  Outcome outcome = run_bellows(command);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("and of 2 epochs:"));
  command.insert(command.end(), {"--set", "target_accuracy=0.95"});
  expect_failure(run_bellows(command), 2, "did not reach target_accuracy = 0.95");
}

TEST(PlanCommand, BadPricesAreUsageErrors) {
  const Scratch folder;
  std::ofstream(folder / "empty.yaml") << "currency: EUR\nmachines: []\n";
  std::ofstream(folder / "nameless.yaml") << "machines:\n  - price_per_hour: 1\n    memory_bytes: 1\n"
                                             "    memory_bytes_per_second: 1\n    flops: {fp32: 1}\n";
  expect_plan_failure({"--prices", folder / "empty.yaml"}, 2, "the list has no machine");
  expect_plan_failure({"--prices", folder / "nameless.yaml"}, 2, "a price needs the name of its machine");
  expect_plan_failure({"--prices", folder / "missing.yaml"}, 2, "missing.yaml");
  expect_plan_failure({"--epoch-samples", "9"}, 2, "--epoch-samples is only used with --prices. Pass --prices, too.");
  expect_plan_failure({"--model", "gpt2", "--device-map", "--prices", folder / "empty.yaml"}, 2,
                      "--device-map plans inference");
  expect_plan_failure({"--log", "log.jsonl"}, 2, "--log is only used with --prices. Pass --prices, too.");
  expect_plan_failure({"--model", "mlp", "--fit", "1GB", "--prices", folder / "empty.yaml"}, 2,
                      "Pass a file to --json for the result of --prices");
}

TEST(PlanCommand, MeasuresTheLinkBetweenRanks) {
  const Outcome measured =
      run_bellows({"plan", "--model", "mlp", "--batch", "8", "--ranks", "2", "--measure-link", "--json"});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  const auto link = nlohmann::json::parse(measured.out)["strategy"]["link"];
  EXPECT_TRUE(link["measured"].get<bool>());
  EXPECT_GT(link["bytes_per_second"].get<double>(), 0);
  const Outcome single = run_bellows({"plan", "--model", "mlp", "--batch", "8", "--json"});
  EXPECT_FALSE(nlohmann::json::parse(single.out).contains("strategy")) << "one rank has no strategies";
  expect_plan_failure({"--model", "mlp", "--measure-link"}, 2, "Pass --ranks, too");
  expect_plan_failure({"--model", "mlp", "--ranks", "2", "--measure-link", "--link-gbps", "10"}, 2, "Pass one of them");
  expect_plan_failure({"--model", "mlp", "--ranks", "32", "--measure-link"}, 2, "at most 16 ranks, got 32");
  expect_plan_failure({"--model", "mlp", "--ranks", "2", "--link-gbps", "0"}, 2, "a number above 0");
}

TEST(PlanCommand, DeviceMapShowsWhereTheWeightsAre) {
  const Outcome outcome = run_bellows(
      {"plan", "--model", "bert-20m", "--batch", "2", "--seq", "32", "--device-map", "--memory", "60MB", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json map = nlohmann::json::parse(outcome.out);
  EXPECT_GT(map["weight_bytes"].get<int64_t>(), 60 << 20);
  EXPECT_GT(map["activation_bytes"].get<int64_t>(), 0);
  const auto bytes = [&](const char* key) { return map[key].get<int64_t>(); };
  EXPECT_LE(bytes("device_bytes") + bytes("working_bytes") + bytes("activation_bytes") + bytes("buffer_bytes"),
            bytes("memory_bytes"));
  EXPECT_GT(bytes("disk_bytes"), 0);
  EXPECT_EQ(bytes("host_bytes"), 0);
  EXPECT_GT(map["modules"].size(), 4u);
  const Outcome text = run_bellows({"plan", "--model", "bert-20m", "--batch", "2", "--seq", "32", "--device-map"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("Device map of bert-20m"), HasSubstr("weights that stay in memory")));
  expect_plan_failure({"--model", "bert-20m", "--device-map", "--memory", "1MB"}, 1, "the budget for weights must be");
  expect_plan_failure({"--model", "mlp", "--device-map", "--ranks", "2"}, 2, "cannot be combined with --ranks");
  expect_plan_failure({"--model", "mlp", "--host-memory", "1GB"}, 2, "--host-memory is only used with --device-map");
  expect_plan_failure({"--model", "mlp", "--device-map", "--host-memory", "1GB"}, 2,
                      "--host-memory is only used for models on an accelerator");
}

TEST(PlanCommand, WhatCannotBePlannedIsSaid) {
  const Scratch folder;
  std::ofstream(folder / "r.yaml") << "modell: mlp\n";
  expect_plan_failure({"--model", "bert-bas"}, 2, "bert-base");
  expect_plan_failure({"--model", "mlp", "--batch", "0"}, 2, "--batch");
  expect_plan_failure({"--model", "mlp", "--batch", "6", "--ranks", "4"}, 2,
                      "a batch of 6 samples cannot be divided among 4 ranks");
  expect_plan_failure({"--model", "mlp", "--seq", "16"}, 2, "reads images");
  expect_plan_failure({"--model", "mlp", "--set", "tokenizer=words.json"}, 2, "does not read texts");
  expect_plan_failure({"--model", "encoder_decoder", "--set", "augment=crop"}, 2, "does not read images");
  expect_plan_failure({"--model", "mlp", "--set", "recompute=blocks"}, 2, "does not define blocks");
  expect_plan_failure({"--model", "bert-20m", "--image", "16"}, 2, "reads sequences");
  expect_plan_failure({"--recipe", folder / "r.yaml"}, 2, "model");
  expect_plan_failure({"--recipe", folder / "none.yaml"}, 2, "none.yaml");
  expect_plan_failure({"--model", "mlp", "--fit", "-5"}, 2, "--fit");
  for (const char* size : {"0.5B", "1e19", "1.5XB", "GB", ".", "1.5.5GB"})
    expect_plan_failure({"--model", "mlp", "--fit", size}, 2, "--fit: expected a size");
  expect_plan_failure({"--model", "mlp", "--fit", "1G", "--json"}, 2, "standard output is the recipe");
  expect_plan_failure({"--model", "mlp", "--price-per-hour", "nan"}, 2, "a number above 0");
  expect_plan_failure({"--model", "mlp", "--step-ms", "-1"}, 2, "a number above 0");
  expect_plan_failure({"--model", "mlp", "--image", "100000"}, 2,
                      "--image: expected an integer from 1 to 16384, got 100000");
  expect_plan_failure({"--model", "bert-20m", "--batch", "4", "--seq", "5000"}, 2, "5000");
}

}  // namespace bellows::cli
