#include "bellows/ladder/html_report.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/ladder/chart.h"
#include "bellows/ladder/ladder.h"
#include "bellows/ladder/memory_target.h"
#include "bellows/report/html.h"
#include "bellows/system/machine.h"

namespace bellows::train {

namespace {

/// Added to the shared style of report/html.h. Colors are variables, so light and dark mode share all rules.
constexpr const char* ladder_style = R"(
:root { --accent: #b8410c;
  --bottom: #56708a; --top: #d9541e; --kept: #dbb9a4; --dropped: #a39b92; --good: #24704a;
  --load: #3f83b5; --forward: #cfa228; --backward: #7d5a9e; --optimizer: #3a9470; --other: #a9adb3; }
@media (prefers-color-scheme: dark) { :root {
  --accent: #ff9a5c;
  --bottom: #8ea9c2; --top: #ff8a4c; --kept: #7d5c4a; --dropped: #77726c; --good: #7fcfa6;
  --load: #62a9dc; --forward: #e2bd52; --backward: #a988cc; --optimizer: #5cc09a; --other: #767b83; } }
h1 { font-size: clamp(1.7rem, 5vw, 2.6rem); line-height: 1.15; margin: 0 0 8px; letter-spacing: -0.02em; }
h1 strong { color: var(--accent); font-weight: inherit; }
p { margin: 0 0 12px; max-width: 72ch; } .soft, figcaption, .note { color: var(--soft); font-size: 0.9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 26px 0; }
.card, figure, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 16px 18px; } .card b { display: block; font-size: 1.5rem; line-height: 1.2; font-weight: 650; }
.card span { color: var(--soft); font-size: 0.88rem; display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 18px; }
figure { margin: 0; padding: 18px 18px 12px; min-width: 0; } figcaption { margin-bottom: 12px; }
.panel { padding: 18px; margin-top: 18px; }
svg .axis { fill: var(--soft); font-size: 11px; }
svg .label.dropped, svg .value.dropped { fill: var(--soft); } svg .label.top, svg .value.top { font-weight: 650; }
svg .grid { stroke: var(--line); } svg .whisker { stroke: var(--ink); stroke-width: 1.2; }
svg .target { stroke: var(--good); stroke-width: 1.4; stroke-dasharray: 5 4; }
.mark.bottom { fill: var(--bottom); } .mark.top { fill: var(--top); } .mark.kept { fill: var(--kept); }
.mark.faint { opacity: 0.5; } .hint { display: none; }
.mark.dropped { fill: none; stroke: var(--dropped); stroke-dasharray: 3 2; }
.line { fill: none; stroke-width: 1.2; stroke-linejoin: round; stroke: var(--kept); }
.line.kept, .line.dropped, .end.kept, .end.dropped { opacity: 0.25; }
.line.dropped { stroke: var(--dropped); stroke-width: 0.8; } .line.bottom { stroke: var(--bottom); }
.line.bottom, .line.top { stroke-width: 2; } .line.top { stroke: var(--top); }
.end { fill: var(--kept); } .end.dropped { fill: var(--dropped); } .end.bottom { fill: var(--bottom); }
.end.top { fill: var(--top); }
.part-0 { fill: var(--load); } .part-1 { fill: var(--forward); } .part-2 { fill: var(--backward); }
.part-3 { fill: var(--optimizer); } .part-4 { fill: var(--other); }
.key .bottom { background: var(--bottom); } .key .top { background: var(--top); }
.key .kept { background: var(--kept); } .key .single { background: var(--kept); opacity: 0.5; }
.key .dropped { border: 1px dashed var(--dropped); } .key .target { height: 0; border-top: 2px dashed var(--good);
  border-radius: 0; vertical-align: 4px; }
.key .part-0 { background: var(--load); } .key .part-1 { background: var(--forward); }
.key .part-2 { background: var(--backward); } .key .part-3 { background: var(--optimizer); }
.key .part-4 { background: var(--other); }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 4px; }
th, td { padding: 7px 12px 7px 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child, .words { text-align: left; }
thead th { white-space: normal; }
td small { display: block; color: var(--soft); } td.words { white-space: normal; min-width: 320px; padding-right: 0; }
td.verdict { padding-right: 0; }
tr.kept td:first-child { font-weight: 600; } td.verdict { color: var(--soft); }
tr.kept .verdict { color: var(--good); }
thead tr:not(:last-child) th { border-bottom: 0; padding-bottom: 0; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; margin: 10px 0 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 10px 0 0; font-size: 0.9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.panel:not(.wordy) td:first-child, .panel:not(.wordy) th:first-child { position: sticky; left: 0;
  background: var(--card); }
@media (max-width: 640px) { .hint { display: inline; }
  main { padding: 26px 14px 48px; } figure, .panel { padding: 14px; }
  svg { font-size: 13px; } svg .axis { font-size: 12px; }
  .wordy thead { display: none; } .wordy table, .wordy tbody, .wordy tr { display: block; }
  .wordy tr { padding: 9px 0; border-bottom: 1px solid var(--line); }
  .wordy td { display: inline; white-space: normal; border: 0; padding: 0 8px 0 0; }
  .wordy td:first-child, .wordy td.words { display: block; }
  .wordy td.words { min-width: 0; padding-top: 4px; }
  .wordy td:nth-child(3)::after { content: "\a"; white-space: pre; }
  .wordy td[data-label]::before { content: attr(data-label) " "; color: var(--soft); } }
)";

// ---- parts of the pages. Parameters are HTML, except those of entries and keys, which are text.

/// Everything before the headline. Params: title – text; kind – the kind of ladder, HTML
std::string begin_report(const std::string& title, const std::string& kind) {
  return begin_page("bellows ladder: " + title, ladder_style) + "<p class=\"soft\">" + kind + "</p>\n";
}

std::string interval_text(const char* format, double low, double high) {
  if (!std::isfinite(low) || !std::isfinite(high)) return "";
  return chart_number(format, low) + " to " + chart_number(format, high);
}

double mebibytes(int64_t bytes) {
  return bytes > 0 ? static_cast<double>(bytes) / (1 << 20) : RungResult::unknown;
}

/// Empty if there is no chart.
std::string figure(const std::string& caption, const std::string& explanation, const std::string& key,
                   const std::string& chart) {
  const std::string content = key + "</div>\n" + chart;
  return chart.empty() ? ""
                       : "<figure>\n<h2>" + caption + "</h2>\n<figcaption>" + explanation + "</figcaption>\n" +
                             content + "</figure>\n";
}

std::string key_entry(const std::string& css, const std::string& words) {
  return "<span><i class=\"" + css + "\"></i>" + escape_html(words) + "</span>";
}

std::string card(const std::string& figure_text, const std::string& words, const std::string& detail) {
  return "<div class=\"card\"><b>" + figure_text + "</b><span>" + words + "</span><span>" + detail + "</span></div>\n";
}

std::string cell(const std::string& value, const std::string& detail = "") {
  return "<td>" + value + (detail.empty() ? "" : "<small>" + detail + "</small>") + "</td>";
}

std::string range_cell(const char* format, double value, const Range& range) {
  return cell(chart_number(format, value), interval_text(format, range.low, range.high));
}

std::string header(std::initializer_list<const char*> names) {
  std::string cells;
  for (const char* name : names) cells += "<th scope=\"col\">" + std::string(name) + "</th>";
  return "<thead><tr>" + cells + "</tr></thead>\n";
}

/// A table that scrolls sideways on narrow screens.
std::string panel(const std::string& title, const std::string& explanation, const std::string& rows,
                  const char* css = "") {
  return "<div class=\"panel " + std::string(css) + "\">\n<h2>" + title + "</h2>\n<p class=\"soft\">" + explanation +
         "</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + title + "\">\n<table>\n" + rows +
         "</tbody>\n</table>\n</div>\n</div>\n";
}

std::string entry(const std::string& name, const std::string& value) {
  return "<dt>" + name + "</dt><dd>" + escape_html(value) + "</dd>\n";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// The machine's rows of a list of conditions.
std::string machine_entries(const Machine& machine) {
  return entry("processor", machine.cpu) +
         entry("threads", c10::str(machine.torch_threads, " of ", machine.hardware_threads)) +
         entry("instruction sets", joined(machine.isa)) +
         entry("memory", format_bytes(static_cast<double>(machine.memory_bytes))) + entry("system", machine.os) +
         entry("libtorch", machine.libtorch);
}

// ---- the ladder's page

constexpr const char* part_names[] = {"load", "forward", "backward", "optimizer", "other"};

/// Plain first, then the rungs that were measured.
std::vector<const RungResult*> measured_rungs(const LadderReport& report) {
  std::vector<const RungResult*> rungs = {&report.plain};
  for (const RungResult& rung : report.rungs) {
    if (std::isfinite(rung.step_ms)) rungs.push_back(&rung);
  }
  return rungs;
}

MarkRole role_of(const LadderReport& report, const RungResult& rung) {
  if (&rung == &report.plain) return MarkRole::bottom;
  if (&rung == &report.top()) return MarkRole::top;
  return rung.kept() ? MarkRole::kept : MarkRole::dropped;
}

/// 0.97 as "97 %", with a no-break space.
std::string target_text(const LadderReport& report) {
  return chart_number("%.4g\u00a0%%", 100 * report.options.target_accuracy);
}

std::string roles_key(const LadderReport& report) {
  std::string key = "<div class=\"key\">" + key_entry("bottom", "plain libtorch");
  if (&report.top() != &report.plain) key += key_entry("top", "all kept techniques") + key_entry("kept", "kept");
  return key + key_entry("dropped", "not kept");
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

std::string ratio_detail(const RatioInterval& ratio) {
  const std::string interval = interval_text("%.2f", ratio.low, ratio.high);
  if (!std::isfinite(ratio.ratio)) return "not measured";
  return interval.empty() ? "one seed" : "90 % interval " + interval;
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

std::string memory_chart(const LadderReport& report) {
  std::vector<ChartBar> bars;
  for (const RungResult* rung : measured_rungs(report)) {
    const double peak = mebibytes(rung->peak_bytes);
    bars.push_back({.label = rung->title,
                    .shown = chart_number("%.1f", peak),
                    .value = peak,
                    .range = {},
                    .role = role_of(report, *rung)});
  }
  const std::string svg =
      bar_chart({.id = "memory",
                 .title = "Peak memory by rung",
                 .description = "One bar per rung. It shows the maximum of the live tensor bytes during training."},
                "MiB", bars);
  return figure("Peak memory", "The maximum of the live tensor bytes during training to the target.", roles_key(report),
                svg);
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

std::string ratio_cell(const RatioInterval& ratio) {
  return cell(chart_number("%.2f×", ratio.ratio), interval_text("%.2f", ratio.low, ratio.high));
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

std::string expectation_row(const RungResult& rung) {
  const auto words = [](const char* question, Effect effect) {
    return "<td data-label=\"" + std::string(question) + "\">" + std::string(to_string(effect)) + "</td>";
  };
  std::string verdict(to_string(rung.verdict)), expectation = rung.expectation;
  std::erase(expectation, '`');
  if (rung.judged_by_target) verdict += ", judged by the time to target";
  if (!rung.note.empty()) verdict += ": " + rung.note;
  if (!rung.runs_again.empty()) verdict += "; repeated runs: " + rung.runs_again;
  const std::string loader =
      rung.is_about_loading && !rung.bottleneck.empty() ? "<small>" + escape_html(rung.bottleneck) + "</small>" : "";
  return "<tr" + std::string(rung.kept() ? " class=\"kept\"" : "") + "><td>" + escape_html(rung.title) + "</td>" +
         words("helps speed? expected", rung.expected_speed) + words("measured", rung.measured_speed) +
         words("helps memory? expected", rung.expected_memory) + words("measured", rung.measured_memory) +
         "<td class=\"words\">" + escape_html(expectation) + "<small class=\"verdict\">" + escape_html(verdict) +
         ".</small>" + loader + "</td></tr>\n";
}

std::string expectation_table(const LadderReport& report) {
  std::string rows =
      "<thead><tr><th></th><th colspan=\"2\" scope=\"colgroup\">helps speed?</th><th colspan=\"2\" "
      "scope=\"colgroup\">helps memory?</th><th></th></tr>\n<tr><th scope=\"col\">technique</th><th "
      "scope=\"col\">expected</th><th scope=\"col\">measured</th><th scope=\"col\">expected</th><th "
      "scope=\"col\">measured</th><th scope=\"col\" class=\"words\">expectation and "
      "result</th></tr></thead>\n<tbody>\n";
  for (const RungResult& rung : report.rungs) rows += expectation_row(rung);
  return panel("Expected and measured",
               "The expected effect of each technique in general, and its measured effect on this model and machine.",
               rows, "wordy");
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
  const bool memory = report.options.goal == LadderGoal::memory;
  const std::string subject = report.model + " on " + report.data;
  return begin_report(subject, memory ? "bellows ladder --memory" : "bellows ladder") + "<h1>" + headline(report) +
         "</h1>\n<p class=\"soft\">" + escape_html(subject) +
         ". Each rung adds one technique to the previous configuration, starting with plain libtorch. A technique is "
         "kept only if it helps." +
         (report.interrupted ? " This ladder was stopped before the end." : "") +
         (report.failure.empty() ? "" : " The last comparison failed: " + escape_html(report.failure)) + "</p>\n" +
         cards(report) + "<div class=\"charts\">\n" +
         (memory ? memory_chart(report) + time_chart(report) : time_chart(report) + memory_chart(report)) +
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
