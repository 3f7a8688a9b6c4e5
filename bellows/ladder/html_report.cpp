#include "bellows/ladder/html_report.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/ladder/chart.h"
#include "bellows/ladder/comparison/comparison_page.h"
#include "bellows/ladder/inference_page.h"
#include "bellows/ladder/ladder.h"
#include "bellows/ladder/memory_target.h"
#include "bellows/ladder/page_parts.h"
#include "bellows/report/html.h"
#include "bellows/system/machine.h"

namespace bellows::train {

namespace {

using namespace page;

// ---- the ladder's page

constexpr const char* part_names[] = {"load", "forward", "backward", "optimizer", "other"};

/// 0.97 as "97 %", with a no-break space.
std::string target_text(const LadderReport& report) {
  return chart_number("%.4g\u00a0%%", 100 * report.options.target_accuracy);
}

std::string headline(const LadderReport& report) {
  if (report.interrupted) return "Stopped before the end";
  if (&report.top() == &report.plain) return "No technique was kept";
  if (report.options.goal == LadderGoal::memory) {
    return "<strong>" + chart_number("%.2f×", report.top().memory_over_start) +
           "</strong> less memory, still reaching " + target_text(report);
  }
  return "<strong>" + chart_number("%.2f×", report.speedup.ratio) + "</strong> faster to " + target_text(report) +
         " accuracy";
}

std::string cards(const LadderReport& report) {
  if (report.interrupted) return "";
  const RungResult& top = report.top();
  const std::string arrow = " → ";
  return "<div class=\"cards\">\n" +
         card(chart_number("%.2f×", report.speedup.ratio), "faster to " + target_text(report) + " held-out accuracy",
              ratio_detail(report.speedup)) +
         card(chart_number("%.2f×", report.speedup_equal_batch.ratio),
              "more samples/s at equal batch size and learning rate", ratio_detail(report.speedup_equal_batch)) +
         card(chart_number("%.1f", report.plain.time_to_target_s) + arrow +
                  chart_number("%.1f\u00a0s", top.time_to_target_s),
              "training time to " + target_text(report),
              c10::str("plain libtorch → all kept techniques; median of ", report.plain.curves.size(),
                       report.plain.curves.size() == 1 ? " seed" : " seeds")) +
         card(chart_number("%.1f", mebibytes(report.plain.peak_bytes)) + arrow +
                  chart_number("%.1f\u00a0MiB", mebibytes(top.peak_bytes)),
              "peak memory of tensors", "plain libtorch → all kept techniques") +
         "</div>\n";
}

std::string time_chart(const LadderReport& report) {
  std::vector<ChartBar> bars;
  for (const RungResult* rung : measured_rungs(report)) {
    bars.push_back({.label = rung->title,
                    .shown = chart_number("%.2f s", rung->time_to_target_s),
                    .value = rung->time_to_target_s,
                    .range = rung->time_to_target_range,
                    .role = role_of(report, *rung),
                    .faint = rung->curves.size() == 1});
  }
  const std::string svg =
      bar_chart({.id = "time",
                 .title = "Time to target by rung",
                 .description = "One bar per rung, starting with plain libtorch. The table below has the numbers."},
                "s", bars);
  return figure("Time to " + target_text(report),
                "Seconds of training, without evaluation. Bars are medians over the seeds; whiskers show the minimum "
                "and the maximum. A pale bar shows a single run, which is accurate to about 6 %. Each rung adds its "
                "technique to the previous configuration.",
                roles_key(report) + key_entry("single", "one seed"), svg);
}

std::string accuracy_chart(const LadderReport& report) {
  std::vector<ChartLine> lines;
  for (const RungResult* rung : measured_rungs(report)) {
    for (const AccuracyCurve& curve : rung->curves) {
      ChartLine line{
          .label = c10::str(rung->title, ", seed ", curve.seed), .points = {}, .role = role_of(report, *rung)};
      for (const auto& point : curve.points) line.points.emplace_back(point.seconds, point.accuracy);
      lines.push_back(std::move(line));
    }
  }
  const double target = report.options.target_accuracy;
  const double low = std::max(0.0, std::floor(10 * (target - 8 * (1 - target))) / 10);
  const std::string svg = line_chart({.id = "accuracy",
                                      .title = "Held-out accuracy over time",
                                      .description = "One line per run; each ends when it reaches the target."},
                                     low, target, lines);
  return figure("Accuracy over wall time",
                "Held-out accuracy in percent over seconds of training. One line per run, until it reaches the target.",
                roles_key(report) + key_entry("target", target_text(report)), svg);
}

std::vector<double> parts_of(const StepShares& shares) {
  return {shares.load_ms, shares.forward_ms, shares.backward_ms, shares.optimizer_ms, shares.other_ms};
}

std::string shares_chart(const LadderReport& report) {
  const RungResult& top = report.top();
  if (report.plain.shares.total_ms() == 0) return "";
  std::vector<ChartStack> stacks = {{.label = "plain libtorch", .parts = parts_of(report.plain.shares)}};
  if (&top != &report.plain) stacks.push_back({.label = "all kept techniques", .parts = parts_of(top.shares)});
  const std::string svg =
      stack_chart({.id = "shares",
                   .title = "Phases of a step",
                   .description = "Milliseconds per step: load, forward, backward, optimizer, other."},
                  "ms", stacks);
  std::string key = "<div class=\"key\">";
  for (size_t part = 0; part < std::size(part_names); ++part) {
    std::string words = part_names[part];
    for (const ChartStack& stack : stacks) {
      words += (&stack == &stacks.front() ? " " : " → ") + chart_number("%.1f", stack.parts[part]);
    }
    key += key_entry(c10::str("part-", part), words + " ms");
  }
  return figure("Phases of a step",
                "Mean over all steps until the target, on the training thread. Batch-size warm-up and progressive "
                "resizing change the size of the steps.",
                key, svg);
}

std::string figures_row(const RungResult& rung) {
  return "<tr" + std::string(rung.kept() ? " class=\"kept\"" : "") + "><td>" + escape_html(rung.title) + "</td>" +
         range_cell("%.2f", rung.step_ms, rung.step_ms_interval) +
         range_cell("%.0f", rung.samples_per_s, rung.samples_per_s_interval) +
         cell(chart_number("%.1f", mebibytes(rung.peak_bytes))) +
         range_cell("%.2f", rung.time_to_target_s, rung.time_to_target_range) +
         range_cell("%.1f", 100 * rung.accuracy, {100 * rung.accuracy_range.low, 100 * rung.accuracy_range.high}) +
         ratio_cell(rung.speedup) + ratio_cell(rung.samples_per_s_over_start) +
         cell(chart_number("%.2f×", rung.target_over_start)) + "<td class=\"verdict\">" +
         (rung.technique == "plain" ? "rung 0" : std::string(to_string(rung.verdict))) + "</td></tr>\n";
}

std::string figures_table(const LadderReport& report) {
  std::string rows = header({"technique", "step ms", "samples/s", "peak MiB", "time to target (s)", "accuracy %",
                             "speedup over previous configuration", "samples/s vs plain libtorch",
                             "time to target vs plain libtorch", "verdict"}) +
                     "<tbody>\n" + figures_row(report.plain);
  for (const RungResult& rung : report.rungs) rows += figures_row(rung);
  return panel("All rungs",
               "Small numbers are 90 % intervals. For the time to target and the accuracy, they are the minimum and "
               "the maximum over the seeds. The speedup over the previous configuration compares samples/s, or the "
               "time to target for techniques that are judged by it. Samples/s vs plain libtorch is the product of the "
               "speedups up to this rung. Time to target vs plain libtorch is the ratio of the medians, for at least "
               "two seeds.<span class=\"hint\"> Scroll the table horizontally.</span>",
               rows);
}

std::string conditions(const LadderReport& report) {
  const LadderOptions& options = report.options;
  const std::string evaluated = options.eval_every_steps > 0
                                    ? c10::str("every ", options.eval_every_steps, " steps")
                                    : "each time the training time has grown by about 3 %, or 6 % for single runs";
  return "<div class=\"panel\">\n<h2>How it was measured</h2>\n<dl>\n" + entry("model", report.model) +
         entry("data", report.data) + machine_entries(report.machine) +
         entry("comparisons",
               c10::str("each technique and the previous configuration alternate in ", options.pairs, " to ",
                        options.max_pairs,
                        " pairs of timed windows. The total, and techniques that change the course of training, use ",
                        options.seeds, options.seeds == 1 ? " seed" : " seeds")) +
         entry("evaluation", evaluated + ". The time of evaluations is not counted") +
         (report.plain.runs_again.empty() ? "" : entry("repeated runs of plain libtorch", report.plain.runs_again)) +
         entry("duration", format_seconds(report.seconds)) +
         "</dl>\n<details><summary>The recipe with all kept techniques</summary>\n<pre>" +
         escape_html(report.recipe_yaml) + "</pre></details>\n</div>\n";
}

// ---- the page of a memory target

std::string size_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string name_of(const MemoryTargetReport& report, const TargetRung& rung) {
  const auto number = &rung - &report.rungs.front();
  return number == 0 ? "unchanged recipe" : c10::str(number, ". ", rung.candidate.changes);
}

MarkRole mark_of(const MemoryTargetReport& report, const TargetRung& rung) {
  if (rung.verdict == TargetVerdict::chosen) return MarkRole::top;
  if (&rung == &report.rungs.front()) return MarkRole::bottom;
  return rung.verdict == TargetVerdict::fits ? MarkRole::kept : MarkRole::dropped;
}

std::string key_of_marks() {
  return "<div class=\"key\">" + key_entry("bottom", "unchanged recipe") + key_entry("top", "chosen") +
         key_entry("kept", "fits, but slower") + key_entry("dropped", "does not qualify");
}

/// One bar per rung. Params: value – NaN: no bar
template <class Value>
std::string rung_bars(const MemoryTargetReport& report, const ChartText& text, const char* unit, Value value) {
  std::vector<ChartBar> bars;
  for (const TargetRung& rung : report.rungs) {
    const double figure_of_it = value(rung);
    bars.push_back({.label = name_of(report, rung),
                    .shown = chart_number("%.2f", figure_of_it),
                    .value = figure_of_it,
                    .range = {},
                    .role = mark_of(report, rung)});
  }
  return bar_chart(text, unit, bars);
}

std::string charts(const MemoryTargetReport& report) {
  const std::string memory = rung_bars(report,
                                       {.id = "memory",
                                        .title = "Peak memory by recipe",
                                        .description = "One bar per measured recipe. The table below has the numbers."},
                                       "MiB", [](const TargetRung& rung) { return mebibytes(rung.peak_bytes); });
  const std::string time =
      rung_bars(report, {.id = "time", .title = "Step time by recipe", .description = "One bar per measured recipe."},
                "ms", [](const TargetRung& rung) { return rung.step_ms; });
  return "<div class=\"charts\">\n" +
         figure("Peak memory",
                "The maximum of the live tensor bytes during a step. The target is " + size_text(report.target.bytes) +
                    ".",
                key_of_marks(), memory) +
         figure("Step time",
                "Time of an optimizer step with all parts of its batch, as the median of the timed windows.",
                key_of_marks(), time) +
         "</div>\n";
}

std::string target_row(const MemoryTargetReport& report, const TargetRung& rung) {
  const bool chosen = rung.verdict == TargetVerdict::chosen;
  return "<tr" + std::string(chosen ? " class=\"kept\"" : "") + "><td>" + escape_html(name_of(report, rung)) + "</td>" +
         cell(chart_number("%.2f", mebibytes(rung.candidate.predicted_bytes))) +
         cell(chart_number("%.2f", mebibytes(rung.peak_bytes))) + cell(chart_number("%.2f", rung.step_ms)) +
         ratio_cell(rung.time_over_start) + cell(chart_number("%.1f", 100 * rung.accuracy)) + "<td class=\"verdict\">" +
         std::string(to_string(rung.verdict)) +
         (rung.note.empty() ? "" : "<small>" + escape_html(rung.note) + "</small>") + "</td></tr>\n";
}

std::string target_table(const MemoryTargetReport& report) {
  std::string rows = header({"recipe", "predicted MiB", "peak MiB", "step ms", "step time vs unchanged recipe",
                             "accuracy %", "verdict"}) +
                     "<tbody>\n";
  for (const TargetRung& rung : report.rungs) rows += target_row(report, rung);
  return panel("Measured recipes",
               "The rows are in the order of measurement: the recipe with the highest expected speed comes first. "
               "Small numbers are 90 % intervals. " +
                   not_measured_words(report),
               rows);
}

std::string target_conditions(const MemoryTargetReport& report) {
  const std::string recipe = report.recipe_yaml.empty() ? ""
                                                        : "<details><summary>The chosen recipe</summary>\n<pre>" +
                                                              escape_html(report.recipe_yaml) + "</pre></details>\n";
  return "<div class=\"panel\">\n<h2>How it was measured</h2>\n<dl>\n" + entry("model", report.model) +
         entry("data", report.data) + machine_entries(report.machine) +
         entry("peak",
               "maximum of the live bytes of libtorch's allocator, minus the bytes at the start. Each recipe runs in "
               "its own process") +
         entry("duration", format_seconds(report.seconds)) + "</dl>\n" + recipe + "</div>\n";
}

std::string target_headline(const MemoryTargetReport& report) {
  const TargetRung* choice = report.chosen();
  if (report.interrupted) return "Stopped before the end";
  if (!choice) return "No recipe fits into " + size_text(report.target.bytes);
  return "<strong>" + size_text(choice->peak_bytes) + "</strong> of " + size_text(report.target.bytes) + ": " +
         escape_html(choice == &report.rungs.front() ? "the unchanged recipe" : choice->candidate.changes);
}

}  // namespace

std::string ladder_page(const LadderReport& report) {
  if (report.options.goal == LadderGoal::inference) return inference_page(report);
  if (report.options.goal == LadderGoal::comparison) return comparison_page(report);
  const bool memory = report.options.goal == LadderGoal::memory;
  const std::string peak = memory_chart(report, "The maximum of the live tensor bytes during training to the target.");
  const std::string subject = report.model + " on " + report.data;
  return begin_report(subject, memory ? "bellows ladder --memory" : "bellows ladder") + "<h1>" + headline(report) +
         "</h1>\n<p class=\"soft\">" + escape_html(subject) +
         ". Each rung adds one technique to the previous configuration, starting with plain libtorch. A technique is "
         "kept only if it helps." +
         (report.interrupted ? " This ladder was stopped before the end." : "") +
         (report.failure.empty() ? "" : " The last comparison failed: " + escape_html(report.failure)) + "</p>\n" +
         cards(report) + "<div class=\"charts\">\n" + (memory ? peak + time_chart(report) : time_chart(report) + peak) +
         accuracy_chart(report) + shares_chart(report) + "</div>\n" + figures_table(report) +
         expectation_table(report) + conditions(report) + "</main>\n</body>\n</html>\n";
}

std::string ladder_page(const MemoryTargetReport& report) {
  const std::string subject = report.model + " on " + report.data;
  std::string paragraphs;
  for (const std::string& words : target_words(report)) paragraphs += "<p>" + escape_html(words) + "</p>\n";
  return begin_report(subject, "bellows ladder --memory-target") + "<h1>" + target_headline(report) +
         "</h1>\n<p class=\"soft\">" + escape_html(subject) + "</p>\n" + paragraphs + charts(report) +
         target_table(report) + target_conditions(report) + "</main>\n</body>\n</html>\n";
}

}  // namespace bellows::train
