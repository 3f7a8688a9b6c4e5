#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/ladder/json_impl.h"
#include "bellows/ladder/memory_target.h"
#include "bellows/ladder/page_impl.h"
#include "bellows/ladder/process.h"

namespace bellows::train {

namespace {

using namespace page;
using TargetJson = nlohmann::ordered_json;
using ladder_json::number_or_null;

std::string bytes_words(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// "1.06 times as long (90 %: 1.02 to 1.10)".
std::string times_as_long(const RatioInterval& ratio) {
  if (!std::isfinite(ratio.ratio)) return "";
  return chart_number("%.2f times as long", ratio.ratio) + " as it is now (90 %: " + chart_number("%.2f", ratio.low) +
         " to " + chart_number("%.2f", ratio.high) + ")";
}

/// What the choice does to the results: one paragraph, or none.
void add_caveats(std::vector<std::string>& words, const TargetRung& choice, double target_accuracy) {
  std::string text;
  bool lossy = false;
  for (const std::string& name : choice.candidate.techniques) {
    const Technique& technique = technique_table().at(name);
    if (technique.exactness == Exactness::exact) continue;
    text +=
        c10::str(text.empty() ? "Not bit for bit as before. " : " ", technique.title, ": ", technique.tolerance, ".");
    lossy = true;
  }
  if (lossy) words.push_back(text);
  if (lossy && target_accuracy == 0)
    words.emplace_back("Whether it learns as well was not measured: --target-accuracy trains the choice to it.");
}

std::string choice_words(const MemoryTargetReport& report, const TargetRung& choice) {
  const std::string peak =
      c10::str("the peak is ", bytes_words(choice.peak_bytes), " of ", bytes_words(report.target.bytes));
  if (&choice == &report.rungs.front())
    return "It stays under the target as it is: " + peak + ". Nothing has to change.";
  std::string text = "Chosen: " + choice.candidate.changes + ". T" + peak.substr(1);
  const TargetRung& start = report.rungs.front();
  if (start.peak_bytes > 0) text += "; as it is now, " + bytes_words(start.peak_bytes);
  text += ". A step takes " + format_seconds(1e-3 * choice.step_ms);
  const std::string times = times_as_long(choice.time_over_start);
  text += times.empty() ? "." : ", " + times + ".";
  if (std::isfinite(choice.time_to_target_s))
    text += c10::str(" It reached an accuracy of ", report.target.target_accuracy, " after ",
                     format_seconds(choice.time_to_target_s), " of training.");
  return text;
}

std::string failure_words(const MemoryTargetReport& report) {
  const TargetRung* least = report.smallest();
  const bool missed = std::ranges::any_of(
      report.rungs, [](const TargetRung& rung) { return rung.verdict == TargetVerdict::misses_target; });
  std::string text =
      c10::str("No recipe stays under ", bytes_words(report.target.bytes),
               missed ? c10::str(" and reaches an accuracy of ", report.target.target_accuracy) : "", ".");
  if (least) {
    const std::string& changes = least->candidate.changes;
    text += c10::str(" The smallest that was measured takes ", bytes_words(least->peak_bytes), ": ",
                     changes == "nothing" ? "the recipe as it is" : changes, ".");
  }
  int64_t evaluation = 0;
  for (const TargetRung& rung : report.rungs) {
    if (rung.evaluation_bytes > report.target.bytes && (evaluation == 0 || rung.evaluation_bytes < evaluation))
      evaluation = rung.evaluation_bytes;
  }
  if (evaluation > 0)
    text += " Some do while they train, but their evaluation takes " + bytes_words(evaluation) + " or more.";
  return text +
         " What is left is a smaller model or picture, or ZeRO over several ranks: `bellows plan` says what "
         "they would bring.";
}

std::string rest_words(const MemoryTargetReport& report) {
  std::vector<std::string> parts;
  const auto add = [&parts](int64_t count, const char* why) {
    if (count > 0) parts.push_back(c10::str(count, why));
  };
  add(report.predicted_too_large, " predicted above the target");
  add(report.expected_slower, " expected to take longer");
  add(report.left, " for want of time");
  return parts.empty() ? "" : "Not measured: " + c10::Join(", ", parts) + ".";
}

TargetJson rung_json(const TargetRung& rung) {
  return {{"changes", rung.candidate.changes},
          {"techniques", rung.candidate.techniques},
          {"verdict", to_string(rung.verdict)},
          {"note", rung.note},
          {"batch_size", rung.candidate.recipe.batch_size},
          {"accumulate", rung.candidate.recipe.accumulate},
          {"predicted_peak_bytes", rung.candidate.predicted_bytes},
          {"peak_bytes", rung.peak_bytes},
          {"evaluation_peak_bytes", rung.evaluation_bytes},
          {"step_ms", number_or_null(rung.step_ms)},
          {"time_over_start", number_or_null(rung.time_over_start.ratio)},
          {"time_over_start_interval", ladder_json::interval_json(rung.time_over_start)},
          {"accuracy", number_or_null(rung.accuracy)},
          {"time_to_target_s", number_or_null(rung.time_to_target_s)}};
}

// ---- the page

std::string name_of(const MemoryTargetReport& report, const TargetRung& rung) {
  const auto number = &rung - &report.rungs.front();
  return number == 0 ? "as it is" : c10::str(number, ". ", rung.candidate.changes);
}

/// What stands left of a bar: the number says which row of the table it is.
std::string bar_label(const MemoryTargetReport& report, const TargetRung& rung) {
  constexpr size_t letters = 17;
  const std::string name = name_of(report, rung);
  return name.size() <= letters ? name : name.substr(0, letters - 1) + "…";
}

MarkRole mark_of(const MemoryTargetReport& report, const TargetRung& rung) {
  if (rung.verdict == TargetVerdict::chosen) return MarkRole::top;
  if (&rung == &report.rungs.front()) return MarkRole::bottom;
  return rung.verdict == TargetVerdict::fits ? MarkRole::kept : MarkRole::dropped;
}

std::string key_of_marks() {
  return "<div class=\"key\">" + key_entry("bottom", "as it is") + key_entry("top", "chosen") +
         key_entry("kept", "fits, takes longer") + key_entry("dropped", "does not do");
}

/// One bar a rung. Params: value – NaN: no bar
template <class Value>
std::string rung_bars(const MemoryTargetReport& report, const ChartText& text, const char* unit, Value value) {
  std::vector<ChartBar> bars;
  for (const TargetRung& rung : report.rungs) {
    const double figure_of_it = value(rung);
    bars.push_back({.label = bar_label(report, rung),
                    .shown = chart_number("%.2f", figure_of_it),
                    .value = figure_of_it,
                    .range = {},
                    .role = mark_of(report, rung)});
  }
  return bar_chart(text, unit, bars);
}

std::string charts(const MemoryTargetReport& report) {
  const std::string memory =
      rung_bars(report,
                {.id = "memory",
                 .title = "Peak memory by recipe",
                 .description = "One bar a recipe that was measured. The table below holds the figures."},
                "MiB", [](const TargetRung& rung) { return mebibytes(rung.peak_bytes); });
  const std::string time = rung_bars(
      report, {.id = "time", .title = "Time of a step by recipe", .description = "One bar a recipe that was measured."},
      "ms", [](const TargetRung& rung) { return rung.step_ms; });
  return "<div class=\"charts\">\n" +
         figure("Peak memory",
                "The highest sum of live tensor bytes in its steps; " + bytes_words(report.target.bytes) +
                    " is the target.",
                key_of_marks(), memory) +
         figure("Time of a step", "Of one optimizer step, with all parts of its batch: the median of timed windows.",
                key_of_marks(), time) +
         "</div>\n";
}

std::string target_row(const MemoryTargetReport& report, const TargetRung& rung) {
  const bool chosen = rung.verdict == TargetVerdict::chosen;
  return "<tr" + std::string(chosen ? " class=\"kept\"" : "") + "><td>" + escape_html(name_of(report, rung)) + "</td>" +
         cell(chart_number("%.2f", mebibytes(rung.candidate.predicted_bytes))) +
         cell(chart_number("%.2f", mebibytes(rung.peak_bytes))) + cell(chart_number("%.2f", rung.step_ms)) +
         range_cell("%.2f", rung.time_over_start.ratio, {rung.time_over_start.low, rung.time_over_start.high}) +
         cell(chart_number("%.1f", 100 * rung.accuracy)) + "<td class=\"verdict\">" +
         std::string(to_string(rung.verdict)) +
         (rung.note.empty() ? "" : "<small>" + escape_html(rung.note) + "</small>") + "</td></tr>\n";
}

std::string target_table(const MemoryTargetReport& report) {
  std::string rows =
      header({"recipe", "predicted MiB", "peak MiB", "step ms", "over as it is", "accuracy %", "verdict"}) +
      "<tbody>\n";
  for (const TargetRung& rung : report.rungs) rows += target_row(report, rung);
  return panel("What was measured",
               "In this order: what was expected to be fastest first. Small figures are 90 % intervals of windows in "
               "turns. " +
                   rest_words(report),
               rows);
}

std::string target_conditions(const MemoryTargetReport& report) {
  const std::string recipe = report.recipe_yaml.empty() ? ""
                                                        : "<details><summary>The chosen recipe</summary>\n<pre>" +
                                                              escape_html(report.recipe_yaml) + "</pre></details>\n";
  return "<div class=\"panel\">\n<h2>How it was measured</h2>\n<dl>\n" + entry("model", report.model) +
         entry("data", report.data) + machine_entries(report.machine) +
         entry("peak",
               "highest sum of live bytes of libtorch's allocator above what there was before, each recipe in "
               "a process of its own") +
         entry("took", format_seconds(report.seconds)) + "</dl>\n" + recipe + "</div>\n";
}

std::string target_headline(const MemoryTargetReport& report) {
  const TargetRung* choice = report.chosen();
  if (report.interrupted) return "Stopped before the end";
  if (!choice) return "Nothing stays under " + bytes_words(report.target.bytes);
  return "<strong>" + bytes_words(choice->peak_bytes) + "</strong> of " + bytes_words(report.target.bytes) + ": " +
         escape_html(choice == &report.rungs.front() ? "as it is" : choice->candidate.changes);
}

// ---- candidates on their way from a process to another

TargetJson candidate_json(const PlanCandidate& candidate) {
  const Measures& m = candidate.measures;
  return {candidate.recipe.to_yaml(),
          static_cast<int>(m.precision),
          static_cast<int>(m.state),
          static_cast<int>(m.saved),
          m.accumulate,
          candidate.changes,
          candidate.techniques,
          candidate.time_factor,
          candidate.predicted_bytes,
          candidate.other_training};
}

PlanCandidate candidate_from(const TargetJson& json) {
  PlanCandidate candidate{.recipe = Recipe::parse(json.at(0).get<std::string>()), .measures = {}};
  candidate.measures.precision = static_cast<Measures::Precision>(json.at(1).get<int>());
  candidate.measures.state = static_cast<Measures::State>(json.at(2).get<int>());
  candidate.measures.saved = static_cast<Measures::Saved>(json.at(3).get<int>());
  json.at(4).get_to(candidate.measures.accumulate);
  json.at(5).get_to(candidate.changes);
  json.at(6).get_to(candidate.techniques);
  json.at(7).get_to(candidate.time_factor);
  json.at(8).get_to(candidate.predicted_bytes);
  json.at(9).get_to(candidate.other_training);
  return candidate;
}

}  // namespace

std::string_view to_string(TargetVerdict verdict) {
  static constexpr std::string_view words[] = {"chosen", "fits",        "too large", "misses the target",
                                               "failed", "not measured"};
  return words[static_cast<size_t>(verdict)];
}

const TargetRung* MemoryTargetReport::chosen() const {
  const auto found = std::ranges::find(rungs, TargetVerdict::chosen, &TargetRung::verdict);
  return found == rungs.end() ? nullptr : &*found;
}

const TargetRung* MemoryTargetReport::smallest() const {
  const TargetRung* least = nullptr;
  for (const TargetRung& rung : rungs) {
    if (rung.peak_bytes > 0 && (!least || rung.peak_bytes < least->peak_bytes)) least = &rung;
  }
  return least;
}

std::vector<std::string> target_words(const MemoryTargetReport& report) {
  std::vector<std::string> words;
  if (report.interrupted) {
    words.push_back(c10::str("Stopped after ", format_seconds(report.seconds), "; what stands above was measured."));
    return words;
  }
  const TargetRung* choice = report.chosen();
  words.push_back(choice ? choice_words(report, *choice) : failure_words(report));
  if (choice) add_caveats(words, *choice, report.target.target_accuracy);
  if (std::string rest = rest_words(report); !rest.empty()) words.push_back(std::move(rest));
  if (!report.certain) words.emplace_back("Time was up: one that was not measured may be faster, or fit.");
  return words;
}

std::string to_json(const MemoryTargetReport& report) {
  const TargetRung* choice = report.chosen();
  TargetJson json = {{"goal", "memory target"},
                     {"target_bytes", report.target.bytes},
                     {"target_accuracy", report.target.target_accuracy},
                     {"model", report.model},
                     {"data", report.data},
                     {"machine", ladder_json::machine_json(report.machine)}};
  json["rungs"] = TargetJson::array();
  for (const TargetRung& rung : report.rungs) json["rungs"].push_back(rung_json(rung));
  json["chosen"] = choice ? rung_json(*choice) : TargetJson(nullptr);
  json["recipe"] = choice ? TargetJson(report.recipe_yaml) : TargetJson(nullptr);
  json["certain"] = report.certain;
  json["not_measured"] = {{"predicted_too_large", report.predicted_too_large},
                          {"expected_slower", report.expected_slower},
                          {"out_of_time", report.left}};
  json["seconds"] = report.seconds;
  json["interrupted"] = report.interrupted;
  return json.dump(1, ' ', false, TargetJson::error_handler_t::replace) + "\n";
}

std::string ladder_page(const MemoryTargetReport& report) {
  const std::string what = escape_html(report.model + " on " + report.data);
  std::string paragraphs;
  for (const std::string& words : target_words(report)) paragraphs += "<p>" + escape_html(words) + "</p>\n";
  return begin(what, "bellows ladder --memory-target") + "<h1>" + target_headline(report) +
         "</h1>\n<p class=\"soft\">" + what + "</p>\n" + paragraphs + charts(report) + target_table(report) +
         target_conditions(report) + "</main>\n</body>\n</html>\n";
}

std::vector<PlanCandidate> candidates_in_own_process(const Recipe& recipe, int64_t length) {
  const std::string text = text_of_own_process([&] {
    TargetJson json = TargetJson::array();
    for (const PlanCandidate& candidate : plan_candidates(recipe, length)) json.push_back(candidate_json(candidate));
    return json.dump();
  });
  std::vector<PlanCandidate> result;
  for (const TargetJson& json : TargetJson::parse(text)) result.push_back(candidate_from(json));
  return result;
}

}  // namespace bellows::train
