#include "bellows/plan/machine_cost.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "bellows/inspect/op_counter.h"
#include "bellows/system/file.h"

namespace bellows::train {

namespace {

using WorkKey = std::tuple<std::string, std::string, bool>;  // module, operator, backward

std::map<WorkKey, OperatorWork> work_of(const inspect::OpReport& report) {
  std::map<WorkKey, OperatorWork> result;
  for (const inspect::OpRow& row : report.rows)
    result[{row.module, row.op, row.backward}] = {static_cast<double>(row.count.flops),
                                                  static_cast<double>(row.count.bytes)};
  return result;
}

MachineCost cost_on(const PricedMachine& machine, const PricedStep& step, double share) {
  MachineCost cost{.machine = machine};
  cost.fits = static_cast<double>(step.peak_bytes) <= machine.memory_bytes;
  const auto flops = machine.flops.find(step.precision);
  cost.has_precision = flops != machine.flops.end();
  if (!cost.has_precision) return cost;
  cost.best_seconds = roofline_seconds(step.work, {flops->second, machine.memory_bytes_per_second});
  cost.seconds = cost.best_seconds / share;
  cost.per_sample = cost.seconds / 3600 * machine.price_per_hour / static_cast<double>(step.samples);
  cost.per_epoch = cost.per_sample * static_cast<double>(step.epoch_samples);
  cost.to_target = cost.per_epoch * static_cast<double>(step.epochs);
  return cost;
}

}  // namespace

std::vector<OperatorWork> count_work(const Recipe& recipe, const StepSize& size) {
  Recipe one_batch = recipe;
  one_batch.gradient_accumulation_steps = 1;
  DryRun run(one_batch);
  const auto two = work_of(run.count({2, size.length})), three = work_of(run.count({3, size.length}));
  const auto more = static_cast<double>(size.batch - 2);
  std::vector<OperatorWork> work;
  work.reserve(two.size());
  for (const auto& [key, at_two] : two) {
    const auto found = three.find(key);
    const OperatorWork at_three = found == three.end() ? at_two : found->second;
    work.push_back({.flops = std::max(0.0, at_two.flops + more * (at_three.flops - at_two.flops)),
                    .bytes = std::max(0.0, at_two.bytes + more * (at_three.bytes - at_two.bytes))});
  }
  return work;
}

int64_t epochs_in_log(const std::string& path, double target) {
  std::istringstream text(read_text_file(path));
  int64_t epochs = 0;
  double best = 0;
  for (std::string line; std::getline(text, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) continue;
    const bool ends_epoch = row.contains("epoch"), evaluated = row.contains("eval_accuracy");
    const auto accuracy = evaluated && row["eval_accuracy"].is_number() ? row["eval_accuracy"].get<double>() : 0;
    best = std::max(best, accuracy);
    if (target > 0 && best >= target) return epochs + 1;
    if (ends_epoch) ++epochs;
  }
  TORCH_CHECK_VALUE(epochs > 0, "plan: ", path, " contains no epoch. Pass the file log.jsonl of a run with log: json.");
  TORCH_CHECK_VALUE(target <= 0, "plan: the run of ", path, " did not reach target_accuracy = ", target, " in its ",
                    epochs, " epochs. Its best accuracy is ", best,
                    ". Pass the log of another run, or change target_accuracy.");
  return epochs;
}

double roofline_seconds(const std::vector<OperatorWork>& work, const MachineRates& rates) {
  double seconds = 0;
  for (const OperatorWork& one : work) seconds += std::max(one.flops / rates.flops, one.bytes / rates.bytes_per_second);
  return seconds;
}

MachineRates node_rates(const Cluster& cluster, const std::string& precision) {
  const auto devices = static_cast<double>(cluster.devices_per_node);
  const std::string dtype = cluster.flops.contains(precision) ? precision : "fp32";
  return {cluster.matmul_flops(dtype) * devices, cluster.memory_bytes_per_second * devices};
}

MachineComparison compare_machines(const PriceList& prices, const PricedStep& step) {
  const bool usable = step.seconds > 0 && step.here.flops > 0 && step.here.bytes_per_second > 0 && step.samples > 0;
  const double here = usable ? roofline_seconds(step.work, step.here) : 0;
  TORCH_CHECK_VALUE(here > 0,
                    "compare_machines: expected a step with operators, a positive time and positive rates of "
                    "this machine, got ",
                    step.work.size(), " operators, ", step.seconds, " s, ", step.here.flops, " FLOP/s, ",
                    step.here.bytes_per_second, " bytes/s and ", step.samples, " samples.");
  MachineComparison result{.currency = prices.currency, .share = here / step.seconds, .rows = {}};
  result.rows.reserve(prices.machines.size());
  for (const PricedMachine& machine : prices.machines) result.rows.push_back(cost_on(machine, step, result.share));
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const MachineCost& row = result.rows[i];
    if (!row.fits || !row.has_precision) continue;
    if (!result.cheapest || row.per_sample < result.rows[*result.cheapest].per_sample) result.cheapest = i;
  }
  return result;
}

}  // namespace bellows::train
