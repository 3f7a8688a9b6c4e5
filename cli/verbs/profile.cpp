#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "bellows/advice/batch_sweep.h"
#include "bellows/advice/findings.h"
#include "bellows/advice/recipe_profile.h"
#include "bellows/comm/elastic/elastic_world.h"
#include "bellows/comm/world.h"
#include "bellows/core/log.h"
#include "bellows/report/tensorboard_trace.h"
#include "bellows/system/file.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::Finding;
using train::Recipe;

Recipe profiled_recipe(const ProfileArguments& arguments) {
  Recipe recipe = arguments.recipe.empty() ? Recipe{} : load_recipe(arguments.recipe);
  apply_overrides(recipe, {.data = arguments.data, .model = arguments.model, .set = arguments.set});
  if (recipe.data.empty()) throw UsageError("profile needs a dataset. Pass --data, or set the key data in the recipe.");
  check_usable(recipe);
  if (!recipe.device.starts_with("cpu"))
    throw UsageError("profile measures the times of operators on the host, but the recipe has device: " +
                     recipe.device + ". Pass --set device=cpu, or record a trace with the recipe key trace_steps.");
  return recipe;
}

std::string findings_text(const std::vector<Finding>& findings) {
  std::string text;
  for (size_t i = 0; i < findings.size(); ++i) {
    const Finding& finding = findings[i];
    text += c10::str("\n", i + 1, ". ", finding.title,
                     finding.gain > 0 ? " (expected: " + number("%.2f", finding.gain) + "× faster)" : "", "\n");
    text += wrapped(finding.text, "   ");
    for (const std::string& place : finding.places) text += wrapped(one_line(place), "     ");
    for (const std::string& setting : finding.settings) text += "   --set " + setting + "\n";
  }
  return text.empty() ? "\nNo rule found a cause.\n" : text;
}

std::string sweep_text(const std::vector<train::BatchThroughput>& sweep) {
  if (sweep.empty()) return "";
  std::string text = "\nbatch size   samples/s    ms per batch\n";
  for (const train::BatchThroughput& row : sweep)
    text += pad_left(std::to_string(row.batch_size), 10) + pad_left(brief_number(row.samples_per_s()), 12) +
            pad_left(brief_number(1e3 * row.seconds), 16) + "\n";
  const int64_t best = train::saturating_batch(sweep);
  return text + (best > 0 ? c10::str("Above ", best, " samples per batch, the throughput grows by less than 5 %.\n")
                          : "The throughput still grows with the largest of these batches.\n");
}

nlohmann::ordered_json sweep_json(const std::vector<train::BatchThroughput>& sweep) {
  auto rows = nlohmann::ordered_json::array();
  for (const train::BatchThroughput& row : sweep)
    rows.push_back({{"batch_size", row.batch_size}, {"samples_per_s", row.samples_per_s()}});
  return rows;
}

/// Wraps the lines that are too long, such as those with call sites.
std::string in_columns(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    result += display_width(line) > 80 ? wrapped(line, "  ") : line + "\n";
  return result;
}

std::string profile_text(const train::RecipeProfile& profile, const std::vector<Finding>& findings,
                         const std::vector<train::BatchThroughput>& sweep) {
  const std::string step = profile.step.to_text();
  const size_t verdict_end = step.find('\n') + 1;
  return step.substr(0, verdict_end) +
         c10::str(profile.recipe.model, ", batches of ", profile.batch_size, ", ",
                  brief_number(profile.samples_per_s()), " samples/s\n") +
         findings_text(findings) + sweep_text(sweep) + (profile.ranks ? train::ranks_text(*profile.ranks) : "") +
         in_columns(step.substr(verdict_end));
}

std::string profile_json(const train::RecipeProfile& profile, const std::vector<Finding>& findings,
                         const std::vector<train::BatchThroughput>& sweep) {
  auto rows = nlohmann::ordered_json::array();
  for (const Finding& finding : findings)
    rows.push_back({{"name", finding.name},
                    {"title", finding.title},
                    {"text", finding.text},
                    {"places", finding.places},
                    {"settings", finding.settings},
                    {"gain", finding.gain > 0 ? nlohmann::ordered_json(finding.gain) : nlohmann::ordered_json()}});
  nlohmann::ordered_json json = {{"model", profile.recipe.model},
                                 {"batch_size", profile.batch_size},
                                 {"samples_per_s", profile.samples_per_s()},
                                 {"findings", std::move(rows)},
                                 {"batch_sweep", sweep_json(sweep)},
                                 {"step", nlohmann::ordered_json::parse(profile.step.to_json())}};
  if (profile.ranks) json["ranks"] = nlohmann::ordered_json::parse(train::ranks_json(*profile.ranks));
  return json_text(json);
}

/// Writes the trace of a step: one file with all ranks, and a file per rank for TensorBoard.
void write_traces(const ProfileArguments& arguments, const std::vector<std::string>& records) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t time_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const int ranks = static_cast<int>(records.size());
  TraceWriter all;
  for (int rank = 0; rank < ranks; ++rank) {
    TraceWriter own;
    own.append(records[static_cast<size_t>(rank)]);
    all.append(own);
    if (!arguments.tensorboard.empty())
      write_tensorboard_trace(arguments.tensorboard, own, {.rank = rank, .ranks = ranks, .time_ms = time_ms});
  }
  if (!arguments.trace.empty()) all.write(arguments.trace);
}

/// Joins the ranks of a launcher. Ranks other than the first one only log warnings.
World join_ranks(const ProfileArguments& arguments) {
  if (comm::ElasticWorld::is_offered())
    throw UsageError("profile does not replace lost ranks. Launch it without --replace-lost.");
  World world = init();
  if (world.rank() > 0) set_log_level(LogLevel::warn);
  if (world.size() > 1 && arguments.batch_sweep)
    throw UsageError("--batch-sweep works only with one process. Run it without a launcher.");
  return world;
}

}  // namespace

int run_profile(const ProfileArguments& arguments) {
  const Recipe recipe = profiled_recipe(arguments);
  const Interrupt interrupt("no result is printed");
  const World world = join_ranks(arguments);
  const bool first = world.rank() == 0, traces = !arguments.trace.empty() || !arguments.tensorboard.empty();
  if (first) {
    for (const std::string& file : {arguments.html, arguments.trace, arguments.json}) check_output_file(file);
  }
  Terminal terminal;
  if (first) terminal.status("profile", c10::str("measuring ", arguments.steps, " steps"));
  const auto ranks = world.size() > 1 ? std::optional<comm::Group>(world.group()) : std::nullopt;
  TraceWriter trace;
  const train::RecipeProfile profile =
      train::profile_recipe(recipe, {.steps = arguments.steps, .trace = traces ? &trace : nullptr}, ranks);
  std::vector<std::string> records = {trace.records()};
  if (ranks && traces) records = train::gather_traces(trace, *ranks);
  if (!first) return exit_done;
  const std::vector<Finding> findings = train::findings_of(profile);
  std::vector<train::BatchThroughput> sweep;
  if (arguments.batch_sweep) sweep = train::sweep_batches(recipe);
  write_traces(arguments, records);
  if (!arguments.html.empty()) write_text_file(arguments.html, train::profile_page(profile, findings));
  if (arguments.json != "-") terminal.print(profile_text(profile, findings, sweep));
  write_json(arguments.json, profile_json(profile, findings, sweep));
  return exit_done;
}

}  // namespace bellows::cli
