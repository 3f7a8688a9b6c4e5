#include <algorithm>
#include <utility>

#include "bellows/core/stats.h"
#include "bellows/plan/link_bandwidth.h"
#include "bellows/plan/machine_cost.h"
#include "bellows/plan/simulator/cluster_measurement.h"
#include "bellows/system/file.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/resolved_job.h"
#include "cli/options.h"
#include "cli/placement_options.h"
#include "cli/plan_text.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

using train::Recipe;

Recipe planned_recipe(const PlanArguments& arguments) {
  Recipe recipe = arguments.recipe.empty() ? Recipe{} : load_recipe(arguments.recipe);
  apply_overrides(recipe, {.data = "", .model = arguments.model, .set = arguments.set});
  if (arguments.batch > 0) recipe.batch_size = arguments.batch;
  if (arguments.image > 0) recipe.image_size = arguments.image;
  if (arguments.seq > 0) recipe.max_length = arguments.seq;
  check_usable(recipe);
  recipe = train::with_total_batch(recipe, arguments.ranks);
  if (recipe.batch_size % arguments.ranks != 0) {
    throw UsageError(c10::str("plan: a batch of ", recipe.batch_size, " samples cannot be divided among ",
                              arguments.ranks, " ranks. Choose a multiple of ", arguments.ranks, "."));
  }
  return recipe;
}

/// Throws: UsageError if the options for the link between ranks do not fit together
void check_link(const PlanArguments& arguments) {
  const bool given = arguments.link_gbps > 0, measured = arguments.measure_link;
  if ((given || measured) && arguments.ranks == 1)
    throw UsageError(c10::str("plan: ", given ? "--link-gbps" : "--measure-link",
                              " is about the link between several ranks. Pass --ranks, too."));
  if (given && measured)
    throw UsageError("plan: --link-gbps and --measure-link both set the bandwidth. Pass one of them.");
  if (measured && arguments.ranks > train::most_measured_ranks)
    throw UsageError(c10::str("plan: --measure-link supports at most ", train::most_measured_ranks, " ranks, got ",
                              arguments.ranks, ". Use --link-gbps."));
}

/// Bytes per second between ranks; 0 if unknown.
double link_of(const PlanArguments& arguments) {
  if (arguments.measure_link) return train::measure_link(static_cast<int>(arguments.ranks));
  return arguments.link_gbps * 1e9 / 8;
}

/// The length of a sample: --image for models that read images, otherwise --seq.
int64_t length_of(const PlanArguments& arguments, const Recipe& recipe) {
  Recipe model_alone = recipe;
  model_alone.image_size = 0;  // said below where it does not fit
  const bool images = train::resolve_model(model_alone).model.input == models::InputKind::image;
  if (images && arguments.seq > 0)
    throw UsageError("plan: " + recipe.model + " reads images. Use --image instead of --seq.");
  if (!images && arguments.image > 0)
    throw UsageError("plan: " + recipe.model + " reads sequences. Use --seq instead of --image.");
  return images ? arguments.image : arguments.seq;
}

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// Throws: c10::Error if no recipe fits
train::FittingRecipe fitting_recipe(const train::MemoryPlan& plan, int64_t bytes) {
  auto fitting = train::cheapest_that_fits(plan, bytes);
  TORCH_CHECK(
      fitting, "plan: no recipe fits into ", size_text(bytes), ". The unchanged step needs ",
      size_text(plan.peak_bytes()),
      ", and lower precision, gradient accumulation, smaller activations and other optimizers do not save enough. "
      "`bellows plan` without --fit lists more options.");
  return *std::move(fitting);
}

/// A comment on a changed optimizer or optimizer state.
std::string words_on_state(const Recipe& now, const Recipe& before) {
  if (now.optimizer != before.optimizer)
    return "# The optimizer is different: tune lr again, and compare the accuracy.\n";
  if (now.optimizer_state == before.optimizer_state) return "";
  return c10::str("# optimizer_state: ", now.optimizer_state,
                  " needs no change of lr, but stores the moments with a relative error of about ",
                  now.optimizer_state == "int8" ? "1 %" : "10 %", ". Compare the accuracy with fp32 state.\n");
}

/// Prints a recipe for `bellows train` to standard output, and nothing else.
void print_fitting(const train::FittingRecipe& fitting, const train::MemoryPlan& plan, int64_t bytes) {
  print_result(c10::str("# Predicted peak: ", size_text(fitting.plan.peak_bytes()), " of ", size_text(bytes),
                        "; without changes: ", size_text(plan.peak_bytes()), ".\n# Changed: ", fitting.changes,
                        ". Expected time per sample: ", number("%.2f×", fitting.time_factor), " the original.\n",
                        words_on_state(fitting.recipe, plan.recipe), fitting.recipe.to_yaml()));
}

struct Prices {
  train::PriceList list;
  int64_t epochs = 0;  ///< until the target
};

/// Throws: UsageError if the options do not fit together, or a file has an error
std::optional<Prices> prices_of(const PlanArguments& arguments, const Recipe& recipe) {
  const char* alone = arguments.epoch_samples > 0 ? "--epoch-samples" : arguments.log.empty() ? nullptr : "--log";
  if (arguments.prices.empty() && alone)
    throw UsageError(c10::str("plan: ", alone, " is only used with --prices. Pass --prices, too."));
  if (arguments.prices.empty()) return {};
  if (arguments.fit > 0 && arguments.json.empty())
    throw UsageError(
        "plan: with --fit, standard output is the recipe. Pass a file to --json for the result of --prices.");
  if (arguments.device_map)
    throw UsageError("plan: --prices compares training steps, but --device-map plans inference. Pass one of them.");
  return usable([&] {
    return Prices{
        .list = train::read_price_list(arguments.prices),
        .epochs = arguments.log.empty() ? recipe.epochs : train::epochs_in_log(arguments.log, recipe.target_accuracy)};
  });
}

/// Samples of an epoch; 0 if the recipe has no data.
int64_t epoch_samples_of(const PlanArguments& arguments, const Recipe& recipe) {
  if (arguments.epoch_samples > 0) return arguments.epoch_samples;
  return recipe.data.empty() ? 0 : train::train_part(train::resolve(recipe)).size();
}

void compare_machines(const Prices& prices, const PlanArguments& arguments, PlanReport& report) {
  const train::MemoryPlan& plan = report.plan;
  report.epoch_samples = epoch_samples_of(arguments, plan.recipe);
  report.epochs = prices.epochs;
  const double seconds = report.situation.step_seconds / static_cast<double>(report.timed_batches);
  report.machines =
      train::compare_machines(prices.list, {.work = train::count_work(plan.recipe, plan.size),  // of one batch
                                            .seconds = seconds,
                                            .here = train::node_rates(train::measure_cluster(), plan.recipe.precision),
                                            .precision = plan.recipe.precision,
                                            .peak_bytes = plan.peak_bytes(),
                                            .samples = plan.size.batch,
                                            .epoch_samples = report.epoch_samples,
                                            .epochs = report.epochs});
}

PlanReport report_on(const PlanArguments& arguments, train::MemoryPlan plan, const std::optional<Prices>& prices) {
  PlanReport report{.plan = std::move(plan)};
  train::rehearse_bf16(report.plan);
  report.situation = train::situation_of(report.plan);
  if (arguments.memory > 0) report.situation.capacity = static_cast<int64_t>(arguments.memory);
  if (arguments.step_ms > 0) report.situation.step_seconds = arguments.step_ms / 1000;
  report.measured_step = arguments.step_ms > 0;
  const int64_t accumulated = report.plan.recipe.gradient_accumulation_steps;
  report.timed_batches = report.measured_step ? accumulated : std::min<int64_t>(accumulated, 2);  // see DryRun
  report.price_per_hour = arguments.price;
  report.techniques = train::predict_techniques(report.plan, std::max<int64_t>(2, arguments.ranks));
  const double link = link_of(arguments);
  if (link > 0) report.situation.bandwidth = link;
  report.measured_link = arguments.measure_link;
  report.decision = train::decide(report.plan, report.situation);
  if (arguments.ranks > 1 && report.plan.recipe.mesh.empty())
    report.strategy = train::choose_strategy(report.plan, report.situation, arguments.ranks, link);
  if (prices) compare_machines(*prices, arguments, report);
  return report;
}

void write_plan_files(const PlanArguments& arguments, const PlanReport& report) {
  if (!arguments.html.empty())
    write_text_file(arguments.html,
                    report.plan.step.to_html("Predicted memory of a training step of " + report.plan.recipe.model));
  if (!arguments.trace.empty()) {
    TraceWriter writer;
    report.plan.step.draw(writer);
    writer.write(arguments.trace);
  }
  write_json(arguments.json, plan_json(report));
}

}  // namespace

int run_plan(const PlanArguments& arguments) {
  if (arguments.fit > 0 && arguments.json == "-")
    throw UsageError("plan: with --fit, standard output is the recipe. Pass a file to --json.");
  check_link(arguments);
  const Recipe recipe = planned_recipe(arguments);
  const std::optional<Prices> prices = prices_of(arguments, recipe);
  const int64_t length = length_of(arguments, recipe);
  if (arguments.device_map) return run_device_map(arguments, recipe, length);
  if (arguments.host_memory > 0)
    throw UsageError("plan: --host-memory is only used with --device-map. Pass --device-map, too.");
  for (const std::string& file : {arguments.json, arguments.html, arguments.trace}) check_output_file(file);
  train::MemoryPlan plan = train::plan_memory(recipe, {recipe.batch_size, length}, arguments.ranks);
  if (arguments.fit == 0) {
    const PlanReport report = report_on(arguments, std::move(plan), prices);
    if (arguments.json != "-") Terminal().print(plan_text(report));
    write_plan_files(arguments, report);
    return exit_done;
  }
  const auto bytes = static_cast<int64_t>(arguments.fit);
  const train::FittingRecipe fitting = fitting_recipe(plan, bytes);
  print_fitting(fitting, plan, bytes);
  if (!arguments.json.empty() || !arguments.html.empty() || !arguments.trace.empty())
    write_plan_files(arguments, report_on(arguments, fitting.plan, prices));
  return exit_done;
}

}  // namespace bellows::cli
