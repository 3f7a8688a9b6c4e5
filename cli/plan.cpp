#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/stats.h"
#include "bellows/models/registry.h"
#include "cli/options.h"
#include "cli/plan_text.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::Recipe;

Recipe planned_recipe(const PlanArguments& arguments) {
  Recipe recipe = arguments.recipe.empty() ? Recipe{} : load_recipe(arguments.recipe);
  apply_overrides(recipe, {.data = "", .model = arguments.model, .set = arguments.set});
  if (arguments.batch > 0) recipe.batch_size = arguments.batch;
  if (arguments.image > 0) recipe.image_size = arguments.image;
  check_usable(recipe);
  if (recipe.batch_size % arguments.ranks != 0) {
    throw UsageError(c10::str("plan: ", arguments.ranks, " ranks cannot share a batch of ", recipe.batch_size,
                              " samples equally. Choose a multiple."));
  }
  return recipe;
}

/// What a sample's length is called depends on what the model reads.
int64_t length_of(const PlanArguments& arguments, const Recipe& recipe) {
  const bool images = models::model_entry(recipe.model).input == models::InputKind::image;
  if (images && arguments.seq > 0)
    throw UsageError("plan: " + recipe.model + " reads pictures. Give --image, not --seq.");
  if (!images && arguments.image > 0)
    throw UsageError("plan: " + recipe.model + " reads sequences. Give --seq, not --image.");
  return images ? arguments.image : arguments.seq;
}

/// A recipe for `bellows train`, and nothing else, on standard output.
int print_fitting(const PlanArguments& arguments, const train::MemoryPlan& plan) {
  const auto fitting = train::cheapest_that_fits(plan, static_cast<int64_t>(arguments.fit));
  const auto size = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  if (!fitting) {
    TORCH_CHECK(false, "plan: no recipe fits ", size(static_cast<int64_t>(arguments.fit)),
                ": as it is, the step takes ", size(plan.peak_bytes()),
                ", and precision, accumulation and optimizer do not suffice. `bellows plan` "
                "without --fit says what else there is.");
  }
  print_result(c10::str("# Predicted peak ", size(fitting->plan.peak_bytes()), " of ",
                        size(static_cast<int64_t>(arguments.fit)), "; as it was ", size(plan.peak_bytes()),
                        ".\n# Changed: ", fitting->changes, ". Predicted time a sample: ",
                        number("%.2f", fitting->time_factor), " of what it was.\n", fitting->recipe.to_yaml()));
  return exit_done;
}

}  // namespace

int run_plan(const PlanArguments& arguments) {
  const Recipe recipe = planned_recipe(arguments);
  const int64_t length = length_of(arguments, recipe);
  check_json_target(arguments.json);
  check_json_target(arguments.html);
  check_json_target(arguments.trace);
  PlanReport report{.plan = train::plan_memory(recipe, {recipe.batch_size, length}, arguments.ranks)};
  if (arguments.fit > 0) return print_fitting(arguments, report.plan);
  train::rehearse_bf16(report.plan);
  report.situation = train::situation_of(report.plan);
  if (arguments.memory > 0) report.situation.capacity = static_cast<int64_t>(arguments.memory);
  if (arguments.step_ms > 0) report.situation.step_seconds = arguments.step_ms / 1000;
  report.measured_step = arguments.step_ms > 0;
  report.price_per_hour = arguments.price;
  report.techniques = train::predict_techniques(report.plan, std::max<int64_t>(2, arguments.ranks));
  report.decision = train::decide(report.plan, report.situation);
  if (!arguments.html.empty())
    write_text_file(arguments.html, report.plan.step.to_html("Predicted memory of a step of " + recipe.model));
  if (!arguments.trace.empty()) {
    TraceWriter writer;
    report.plan.step.draw(writer);
    writer.write(arguments.trace);
  }
  if (arguments.json != "-") Terminal().print(plan_text(report));
  write_json(arguments.json, plan_json(report));
  return exit_done;
}

}  // namespace bellows::cli
