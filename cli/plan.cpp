#include <algorithm>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/stats.h"
#include "bellows/models/registry.h"
#include "bellows/system/file.h"
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
  if (arguments.seq > 0) recipe.sequence_length = arguments.seq;
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

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// Throws: c10::Error – there is none
train::FittingRecipe fitting_recipe(const train::MemoryPlan& plan, int64_t bytes) {
  auto fitting = train::cheapest_that_fits(plan, bytes);
  TORCH_CHECK(fitting, "plan: no recipe fits ", size_text(bytes), ": as it is, the step takes ",
              size_text(plan.peak_bytes()),
              ", and precision, accumulation, fewer activations and another optimizer do not suffice. `bellows plan` "
              "without --fit says what else there is.");
  return *std::move(fitting);
}

/// What another state of the optimizer asks of who trains with it.
std::string words_on_state(const Recipe& now, const Recipe& before) {
  if (now.optimizer != before.optimizer)
    return "# Another optimizer: its lr has to be found anew, and the accuracy compared.\n";
  if (now.optimizer_state == before.optimizer_state) return "";
  return c10::str("# optimizer_state: ", now.optimizer_state, " keeps lr, but moments to about ",
                  now.optimizer_state == "int8" ? "1 %" : "10 %", " only. Compare the accuracy with fp32 state.\n");
}

/// A recipe for `bellows train`, and nothing else, on standard output.
void print_fitting(const train::FittingRecipe& fitting, const train::MemoryPlan& plan, int64_t bytes) {
  print_result(c10::str("# Predicted peak ", size_text(fitting.plan.peak_bytes()), " of ", size_text(bytes),
                        "; as it was ", size_text(plan.peak_bytes()), ".\n# Changed: ", fitting.changes,
                        ". Predicted time a sample: ", number("%.2f", fitting.time_factor), " of what it was.\n",
                        words_on_state(fitting.recipe, plan.recipe), fitting.recipe.to_yaml()));
}

PlanReport report_on(const PlanArguments& arguments, train::MemoryPlan plan) {
  PlanReport report{.plan = std::move(plan)};
  train::rehearse_bf16(report.plan);
  report.situation = train::situation_of(report.plan);
  if (arguments.memory > 0) report.situation.capacity = static_cast<int64_t>(arguments.memory);
  if (arguments.step_ms > 0) report.situation.step_seconds = arguments.step_ms / 1000;
  report.measured_step = arguments.step_ms > 0;
  report.price_per_hour = arguments.price;
  report.techniques = train::predict_techniques(report.plan, std::max<int64_t>(2, arguments.ranks));
  report.decision = train::decide(report.plan, report.situation);
  return report;
}

void write_plan_files(const PlanArguments& arguments, const PlanReport& report) {
  if (!arguments.html.empty())
    write_text_file(arguments.html,
                    report.plan.step.to_html("Predicted memory of a step of " + report.plan.recipe.model));
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
    throw UsageError("plan: with --fit standard output is a recipe. Give --json a file.");
  const Recipe recipe = planned_recipe(arguments);
  const int64_t length = length_of(arguments, recipe);
  for (const std::string& file : {arguments.json, arguments.html, arguments.trace}) check_json_target(file);
  train::MemoryPlan plan = train::plan_memory(recipe, {recipe.batch_size, length}, arguments.ranks);
  if (arguments.fit == 0) {
    const PlanReport report = report_on(arguments, std::move(plan));
    if (arguments.json != "-") Terminal().print(plan_text(report));
    write_plan_files(arguments, report);
    return exit_done;
  }
  const auto bytes = static_cast<int64_t>(arguments.fit);
  const train::FittingRecipe fitting = fitting_recipe(plan, bytes);
  print_fitting(fitting, plan, bytes);
  if (!arguments.json.empty() || !arguments.html.empty() || !arguments.trace.empty())
    write_plan_files(arguments, report_on(arguments, fitting.plan));
  return exit_done;
}

}  // namespace bellows::cli
