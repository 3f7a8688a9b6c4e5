#include "bellows/ladder/page_parts.h"

#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/core/stats.h"
#include "bellows/report/html.h"

namespace bellows::train::page {

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

}  // namespace

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

std::string cell(const std::string& value, const std::string& detail) {
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

std::string panel(const std::string& title, const std::string& explanation, const std::string& rows, const char* css) {
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

std::string machine_entries(const Machine& machine) {
  return entry("processor", machine.cpu) +
         entry("threads", c10::str(machine.torch_threads, " of ", machine.hardware_threads)) +
         entry("instruction sets", joined(machine.isa)) +
         entry("memory", format_bytes(static_cast<double>(machine.memory_bytes))) + entry("system", machine.os) +
         entry("libtorch", machine.libtorch);
}

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

std::string ratio_detail(const RatioInterval& ratio) {
  const std::string interval = interval_text("%.2f", ratio.low, ratio.high);
  if (!std::isfinite(ratio.ratio)) return "not measured";
  return interval.empty() ? "one seed" : "90 % interval " + interval;
}

std::string ratio_cell(const RatioInterval& ratio) {
  return cell(chart_number("%.2f×", ratio.ratio), interval_text("%.2f", ratio.low, ratio.high));
}

std::string roles_key(const LadderReport& report) {
  const bool compares = report.options.goal == LadderGoal::comparison;
  std::string key = "<div class=\"key\">" + key_entry("bottom", report.plain.title);
  if (&report.top() != &report.plain) {
    key += key_entry("top", compares ? "fastest" : "all kept techniques") +
           key_entry("kept", compares ? "faster" : "kept");
  }
  return key + key_entry("dropped", compares ? "not faster" : "not kept");
}

std::vector<ChartBar> step_bars(const LadderReport& report) {
  std::vector<ChartBar> bars;
  for (const RungResult* rung : measured_rungs(report)) {
    bars.push_back({.label = rung->title,
                    .shown = chart_number("%.2f ms", rung->step_ms),
                    .value = rung->step_ms,
                    .range = rung->step_ms_interval,
                    .role = role_of(report, *rung)});
  }
  return bars;
}

std::vector<ChartBar> size_bars(const LadderReport& report, int64_t RungResult::*bytes) {
  std::vector<ChartBar> bars;
  for (const RungResult* rung : measured_rungs(report)) {
    const double size = mebibytes(rung->*bytes);
    bars.push_back({.label = rung->title,
                    .shown = chart_number("%.1f", size),
                    .value = size,
                    .range = {},
                    .role = role_of(report, *rung)});
  }
  return bars;
}

std::string memory_chart(const LadderReport& report, const std::string& explanation) {
  const std::string svg = bar_chart({.id = "memory",
                                     .title = "Peak memory by rung",
                                     .description = "One bar per rung. The table below has the numbers."},
                                    "MiB", size_bars(report, &RungResult::peak_bytes));
  return figure("Peak memory", explanation, roles_key(report), svg);
}

namespace {

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

}  // namespace

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

}  // namespace bellows::train::page
