#include "bellows/plan/machine_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/checkpoint/support.h"
#include "tests/support/temporary_folder.h"

namespace bellows::train {

namespace {

using checkpoint::error_of;
using testing::HasSubstr;

constexpr const char* two_machines = R"(
currency: EUR
machines:
  - {name: fast, price_per_hour: 36, memory_bytes: 100, memory_bytes_per_second: 200, flops: {fp32: 1000, bf16: 8000}}
  - {name: cheap, price_per_hour: 3.6, memory_bytes: 1000, memory_bytes_per_second: 50, flops: {fp32: 100}}
)";

/// Two operators: the time of the first is that of its operations, the time of the second that of its bytes.
PricedStep priced_step() {
  return {.work = {{.flops = 1000, .bytes = 10}, {.flops = 0, .bytes = 100}},
          .seconds = 8,
          .here = {.flops = 500, .bytes_per_second = 50},  // roofline: 2 s + 2 s
          .peak_bytes = 80,
          .samples = 4,
          .epoch_samples = 1000,
          .epochs = 5};
}

std::string price_error(const std::string& text) {
  return error_of([&] { parse_price_list(text, "p.yaml"); });
}

}  // namespace

TEST(MachineCost, IsTheRooflineByTheShareOfThisMachine) {
  const MachineComparison result = compare_machines(parse_price_list(two_machines, "p.yaml"), priced_step());
  EXPECT_EQ(result.currency, "EUR");
  EXPECT_DOUBLE_EQ(result.share, 0.5);
  ASSERT_EQ(result.rows.size(), 2u);
  const MachineCost &fast = result.rows[0], &cheap = result.rows[1];
  EXPECT_DOUBLE_EQ(fast.best_seconds, 1000.0 / 1000 + 100.0 / 200);
  EXPECT_DOUBLE_EQ(fast.seconds, 3);
  EXPECT_DOUBLE_EQ(fast.per_sample, 3 * 0.01 / 4);  // 36 per hour are 0.01 per second
  EXPECT_DOUBLE_EQ(fast.per_epoch, 7.5);
  EXPECT_DOUBLE_EQ(fast.to_target, 37.5);
  EXPECT_DOUBLE_EQ(cheap.best_seconds, 1000.0 / 100 + 100.0 / 50);
  EXPECT_DOUBLE_EQ(cheap.per_sample, 24 * 0.001 / 4);
  EXPECT_TRUE(fast.fits && cheap.fits);
  EXPECT_EQ(result.cheapest, 1u);
}

TEST(MachineCost, OnlyMachinesThatFitAndHaveThePrecisionAreChosen) {
  const PriceList prices = parse_price_list(two_machines, "p.yaml");
  PricedStep step = priced_step();
  step.precision = "bf16";
  const MachineComparison bf16 = compare_machines(prices, step);
  EXPECT_DOUBLE_EQ(bf16.rows[0].best_seconds, 1000.0 / 8000 + 100.0 / 200);
  EXPECT_FALSE(bf16.rows[1].has_precision);
  EXPECT_EQ(bf16.cheapest, 0u);
  step.peak_bytes = 101;
  EXPECT_FALSE(compare_machines(prices, step).cheapest);
  step.precision = "fp32";
  EXPECT_EQ(compare_machines(prices, step).cheapest, 1u);
}

TEST(MachineCost, RatesAreThoseOfTheWholeNode) {
  const Cluster cluster = parse_cluster(
      "{devices_per_node: 2, memory_bytes: 1, memory_bytes_per_second: 30, flops: {fp32: 10, bf16: 40}, "
      "achieved: {bf16: 0.5}, within: {bytes_per_second: 1}}",
      "c.yaml");
  EXPECT_DOUBLE_EQ(node_rates(cluster, "fp32").flops, 20);
  EXPECT_DOUBLE_EQ(node_rates(cluster, "bf16").flops, 40);
  EXPECT_DOUBLE_EQ(node_rates(cluster, "fp16").flops, 20);
  EXPECT_DOUBLE_EQ(node_rates(cluster, "fp32").bytes_per_second, 60);
}

TEST(MachineCost, WorkOfALargerBatchIsCounted) {
  Recipe recipe;
  recipe.model = "digits_resnet";
  const auto total = [](const std::vector<OperatorWork>& work) {
    OperatorWork sum;
    for (const OperatorWork& one : work) {
      sum.flops += one.flops;
      sum.bytes += one.bytes;
    }
    return sum;
  };
  const StepSize size{.batch = 16, .length = 8};
  const OperatorWork predicted = total(count_work(recipe, size));
  DryRun run(recipe);
  const inspect::OpCount counted = run.count(size).total();
  EXPECT_GT(counted.flops, 0);
  EXPECT_DOUBLE_EQ(predicted.flops, static_cast<double>(counted.flops));
  EXPECT_NEAR(predicted.bytes / static_cast<double>(counted.bytes), 1, 1e-9);
}

TEST(MachineCost, UnusableStepsAreRefused) {
  const PriceList prices = parse_price_list(two_machines, "p.yaml");
  PricedStep empty = priced_step(), timeless = priced_step();
  empty.work.clear();
  timeless.seconds = 0;
  EXPECT_THAT(error_of([&] { compare_machines(prices, empty); }),
              HasSubstr("compare_machines: expected a step with operators, a positive time and positive rates of this "
                        "machine, got 0 operators"));
  EXPECT_THAT(error_of([&] { compare_machines(prices, timeless); }), HasSubstr("2 operators, 0 s"));
}

TEST(PriceList, BadListsAreRefused) {
  EXPECT_THAT(price_error("machines: []"), HasSubstr("prices: p.yaml: the list has no machine."));
  EXPECT_THAT(price_error("currency: USD"), HasSubstr("prices: p.yaml: the key machines is missing."));
  EXPECT_THAT(price_error("machines: {a: 1}"),
              HasSubstr("prices: p.yaml: expected machines to be a list, found a map."));
  EXPECT_THAT(price_error("machines: [1]"), HasSubstr("prices: p.yaml: machines, entry 1: expected a map"));
  EXPECT_THAT(price_error("machines: ["), HasSubstr("prices: p.yaml, line 1: the file is not valid YAML"));
  const std::string rest = "memory_bytes: 1, memory_bytes_per_second: 1, flops: {fp32: 1}";
  EXPECT_THAT(price_error("machines: [{price_per_hour: 1, " + rest + "}]"),
              HasSubstr("prices: p.yaml: machines, entry 1: a price needs the name of its machine. Add the key name."));
  EXPECT_THAT(price_error("machines: [{name: a, " + rest + "}]"),
              HasSubstr("entry 1: expected price_per_hour from 0 to 1e+09, found nothing."));
  EXPECT_THAT(price_error("machines: [{name: a, price_per_hour: -1, " + rest + "}]"), HasSubstr("found \"-1\"."));
  EXPECT_THAT(price_error("machines: [{name: a, price: 1, " + rest + "}]"), HasSubstr("the key \"price\" is unknown."));
  EXPECT_THAT(
      price_error("machines: [{name: a, price_per_hour: 1, memory_bytes: 1, memory_bytes_per_second: 1, flops: {}}]"),
      HasSubstr("expected flops of fp32, bf16 or fp16, found none."));
  const std::string machine = "{name: a, price_per_hour: 1, " + rest + "}";
  EXPECT_THAT(price_error("machines: [" + machine + ", " + machine + "]"),
              HasSubstr("entry 2: the machine \"a\" occurs twice. Remove one of them, or rename it."));
}

TEST(PriceList, TheExampleIsValid) {
  const PriceList prices = read_price_list(std::string(BELLOWS_SOURCE_DIR) + "/examples/10_prices/prices.yaml");
  EXPECT_GE(prices.machines.size(), 4u);
  for (const PricedMachine& machine : prices.machines) EXPECT_TRUE(machine.flops.contains("fp32")) << machine.name;
}

TEST(MachineCost, TakesTheEpochsFromALog) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/log.jsonl";
  std::ofstream(path) << R"({"step": 5, "loss": 1.2}
{"step": 10, "epoch": 0, "eval_accuracy": 0.5}
{"step": 15, "eval_accuracy": 0.9}
{"step": 20, "epoch": 1, "eval_accuracy": 0.85}
{"step": 30, "epoch": 2, "eval_accuracy": 0.95}
{"step": 40, "epoch": 3, "eval_accuracy": null}
{"step": 4)";
  EXPECT_EQ(epochs_in_log(path, 0.5), 1);
  EXPECT_EQ(epochs_in_log(path, 0.9), 2);  // within the second epoch
  EXPECT_EQ(epochs_in_log(path, 0.95), 3);
  EXPECT_EQ(epochs_in_log(path, 0), 4);
  EXPECT_THAT(error_of([&] { epochs_in_log(path, 0.97); }),
              HasSubstr("did not reach target_accuracy = 0.97 in its 4 epochs. Its best accuracy is 0.95."));
  std::ofstream(path) << "step,loss\n";
  EXPECT_THAT(error_of([&] { epochs_in_log(path, 0); }), HasSubstr("contains no epoch"));
}

}  // namespace bellows::train
