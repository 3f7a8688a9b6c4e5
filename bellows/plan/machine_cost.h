#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/plan/dry_run.h"
#include "bellows/plan/price_list.h"
#include "bellows/plan/simulator/cluster.h"

namespace bellows::train {

/// The work of an operator of a training step.
struct OperatorWork {
  double flops = 0, bytes = 0;
};

/// The rates of a device.
struct MachineRates {
  double flops = 0, bytes_per_second = 0;
};

/// Counts the operators of forward, backward and update (inspect/op_counter.h), one entry per operator and module. Steps
/// with 2 and 3 samples run on this machine, and each entry is extended linearly to `size.batch` samples.
/// Numerics: equal to the counts of a step of this size, if the operators of a step do not depend on the number of
///           samples (tests/plan/machine_cost_test.cpp)
/// Cost:     four steps of the full model. `gradient_accumulation_steps` is not used
/// Throws:   c10::ValueError like DryRun
std::vector<OperatorWork> count_work(const Recipe& recipe, const StepSize& size);

/// Returns the shortest possible time of the work on a device: each operator takes the longer of the times of its
/// operations and of its bytes.
/// Ref: the roofline model, doi:10.1145/1498765.1498785
double roofline_seconds(const std::vector<OperatorWork>& work, const MachineRates& rates);

/// Returns the rates of all devices of a node in a recipe's precision; in fp32, if the description does not have it.
MachineRates node_rates(const Cluster& cluster, const std::string& precision);

/// A step on this machine, from which those on other machines are predicted.
struct PricedStep {
  std::vector<OperatorWork> work{};
  double seconds = 0;  ///< time on this machine
  MachineRates here{};
  std::string precision = "fp32";  ///< of the recipe
  int64_t peak_bytes = 0;
  int64_t samples = 1;        ///< in this step
  int64_t epoch_samples = 0;  ///< 0 if unknown
  int64_t epochs = 1;         ///< until the target
};

/// Returns the number of epochs until a run reached an accuracy, from the file `log.jsonl` in its folder (`log: json`). An
/// epoch that the run did not complete counts as one.
/// Params: target – accuracy; 0: returns the number of all epochs
/// Throws: c10::ValueError if the file cannot be read, contains no epoch, or if the run did not reach the accuracy
int64_t epochs_in_log(const std::string& path, double target);

/// The predicted time and cost on one machine of a price list.
struct MachineCost {
  PricedMachine machine;
  bool has_precision = false;  ///< whether the list has the rate of the recipe's precision. If not, there are no times
  bool fits = false;           ///< whether the predicted peak fits into the memory
  double best_seconds = 0;     ///< roofline of the data sheet
  double seconds = 0;          ///< with the share of the roofline that this machine reaches
  double per_sample = 0, per_epoch = 0, to_target = 0;  ///< cost for `seconds`; 0 if the size of an epoch is unknown
};

struct MachineComparison {
  std::string currency;
  double share = 0;  ///< share of its measured roofline that this machine reaches
  std::vector<MachineCost> rows;
  std::optional<size_t> cheapest{};  ///< row with the lowest cost per sample, among those that fit
};

/// Predicts time and cost of a step on each machine of a list. The prediction assumes that each machine reaches the same
/// share of its data sheet's roofline as this machine of its measured roofline. Exchange between ranks, loading of data
/// and evaluation are not included.
/// Throws: c10::ValueError if `step.seconds`, `step.here` or `step.samples` is not positive, or the work is empty
MachineComparison compare_machines(const PriceList& prices, const PricedStep& step);

}  // namespace bellows::train
