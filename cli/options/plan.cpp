#include <CLI/CLI.hpp>

#include "cli/option_checks.h"
#include "cli/size_option.h"
#include "cli/verb_options.h"

namespace bellows::cli {

void add_planned_step(CLI::App* verb, PlanArguments& arguments) {
  const CLI::Validator count = whole_number(1, int64_t{1} << 20);
  begin_group(verb, "Step");
  verb->add_option("--batch", arguments.batch,
                   "Number of samples per batch, over all ranks [default: `batch_size` of the recipe]")
      ->type_name("N")
      ->check(count);
  verb->add_option("--seq", arguments.seq,
                   "Number of tokens per text, or of steps per time series [default: the model's usual input size]")
      ->type_name("N")
      ->check(count);
  verb->add_option("--image", arguments.image,
                   "Height and width of images in pixels [default: the model's usual input size]")
      ->type_name("N")
      ->check(whole_number(1, 16384));
  verb->add_option("--ranks", arguments.ranks, "Number of devices that share the batch [default: 1]")
      ->type_name("N")
      ->check(count);
  verb->add_option("--link-gbps", arguments.link_gbps,
                   "Network bandwidth of each rank in Gbit/s. With this option, the result also states how long the "
                   "ranks exchange data in each step. Needs --ranks")
      ->type_name("GBPS")
      ->check(CLI::Validator(positive_problem, ""));
  verb->add_flag("--measure-link", arguments.measure_link,
                 "Measure the bandwidth between ranks on this machine instead, over the loopback interface");
}

void add_plan_limits(CLI::App* verb, PlanArguments& arguments) {
  begin_group(verb, "Limits and cost");
  add_size(verb, "--memory", arguments.memory, "Memory per device, such as 16GB [default: the memory of this machine]");
  add_size(verb, "--fit", arguments.fit,
           "Search for the fastest recipe whose predicted peak memory is at most this size, and write it to standard "
           "output");
  verb->add_option("--step-ms", arguments.step_ms,
                   "Measured time of a step in milliseconds [default: an estimate from the synthetic batches]")
      ->type_name("MS")
      ->check(CLI::Validator(positive_problem, ""));
  verb->add_option("--price-per-hour", arguments.price,
                   "Price of one device per hour. With this option, the result also states the cost")
      ->type_name("PRICE")
      ->check(CLI::Validator(positive_problem, ""));
  verb->add_option("--prices", arguments.prices,
                   "YAML file with machines and their prices. The result also compares the predicted time and cost on "
                   "each of them. Measures this machine and runs the full model")
      ->type_name("FILE");
  verb->add_option("--epoch-samples", arguments.epoch_samples,
                   "Samples of an epoch, with --prices [default: those of the recipe's data]")
      ->type_name("N")
      ->check(whole_number(1, int64_t{1} << 40));
  verb->add_option("--log", arguments.log,
                   "log.jsonl of a finished run, with --prices. The epochs until this run reached the recipe's "
                   "target_accuracy replace `epochs` of the recipe")
      ->type_name("FILE");
}

}  // namespace bellows::cli
