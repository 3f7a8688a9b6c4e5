#include "bellows/ladder/page.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "bellows/ladder/chart.h"
#include "bellows/ladder/page_impl.h"

namespace bellows::train {

namespace {

using namespace page;

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

/// 0.97 as "97 %", in one piece.
std::string target_text(const LadderReport& report) {
  return chart_number("%.4g\u00a0%%", 100 * report.options.target_accuracy);
}

std::string roles_key(const LadderReport& report) {
  std::string key = "<div class=\"key\">" + key_entry("bottom", "plain libtorch");
  if (&report.top() != &report.plain)
    key += key_entry("top", "all that was kept") + key_entry("kept", "kept on the way");
  return key + key_entry("dropped", "not kept");
}

// ---- the head

std::string headline(const LadderReport& report) {
  if (report.interrupted) return "Stopped before the top";
  if (&report.top() == &report.plain) return "Nothing was kept";
  if (report.options.goal == LadderGoal::memory) {
    return "<strong>" + chart_number("%.2f times", report.top().memory_over_start) +
           "</strong> less memory, still to " + target_text(report);
  }
  return "<strong>" + chart_number("%.2f times", report.speedup.ratio) + "</strong> sooner at " + target_text(report);
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
         card(chart_number("%.2f×", report.speedup.ratio), "time to " + target_text(report) + " held out",
              ratio_detail(report.speedup)) +
         card(chart_number("%.2f×", report.speedup_equal_batch.ratio), "samples a second, equal batch and rate",
              ratio_detail(report.speedup_equal_batch)) +
         card(chart_number("%.1f", report.plain.time_to_target_s) + arrow +
                  chart_number("%.1f\u00a0s", top.time_to_target_s),
              "training until " + target_text(report),
              c10::str("plain libtorch → all that was kept; median of ", report.plain.curves.size(),
                       report.plain.curves.size() == 1 ? " seed" : " seeds")) +
         card(chart_number("%.1f", mebibytes(report.plain.peak_bytes)) + arrow +
                  chart_number("%.1f\u00a0MiB", mebibytes(top.peak_bytes)),
              "peak memory of tensors", "plain libtorch → all that was kept") +
         "</div>\n";
}

// ---- the charts

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
                 .title = "Time to the target by rung",
                 .description = "One bar a rung, from plain libtorch upwards. The table below holds "
                                "the figures."},
                "s", bars);
  return figure("Time to " + target_text(report),
                "Seconds of training, evaluation left out. Bars are medians over the seeds, whiskers reach from the "
                "least to the greatest; a faint bar is a single run, known to about 6 %. Each rung adds its technique "
                "to the last one that was kept.",
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
  const std::string svg = bar_chart({.id = "memory",
                                     .title = "Peak memory by rung",
                                     .description = "One bar a rung: the highest sum of live tensor bytes while it "
                                                    "trained."},
                                    "MiB", bars);
  return figure("Peak memory", "The highest sum of live tensor bytes while a rung trained to the target.",
                roles_key(report), svg);
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
                                      .title = "Held-out accuracy against time",
                                      .description = "One line a run; each ends where it reached the target."},
                                     low, target, lines);
  return figure("Accuracy against wall time",
                "Held-out accuracy in per cent over seconds of training; one line a run, until the target.",
                roles_key(report) + key_entry("target", target_text(report)), svg);
}

std::vector<double> parts_of(const StepShares& shares) {
  return {shares.load_ms, shares.forward_ms, shares.backward_ms, shares.optimizer_ms, shares.other_ms};
}

std::string shares_chart(const LadderReport& report) {
  const RungResult& top = report.top();
  if (report.plain.shares.total_ms() == 0) return "";
  std::vector<ChartStack> stacks = {{.label = "plain libtorch", .parts = parts_of(report.plain.shares)}};
  if (&top != &report.plain) stacks.push_back({.label = "all that was kept", .parts = parts_of(top.shares)});
  const std::string svg =
      stack_chart({.id = "shares",
                   .title = "Where the time of a step goes",
                   .description = "Milliseconds a step: load, forward, backward, optimizer, other."},
                  "ms", stacks);
  std::string key = "<div class=\"key\">";
  for (size_t part = 0; part < std::size(part_names); ++part) {
    std::string words = part_names[part];
    for (const ChartStack& stack : stacks) {
      words += (&stack == &stacks.front() ? " " : " → ") + chart_number("%.1f", stack.parts[part]);
    }
    key += key_entry(c10::str("part-", part), words + " ms");
  }
  return figure("Where a step’s time goes",
                "The mean step of all runs to the target, on the thread that trains. Batches and images that grow make "
                "steps of different sizes.",
                key, svg);
}

// ---- the table

std::string ratio_cell(const RatioInterval& ratio) {
  return cell(chart_number("%.2f", ratio.ratio), interval_text("%.2f", ratio.low, ratio.high));
}

std::string figures_row(const RungResult& rung) {
  return "<tr" + std::string(rung.kept() ? " class=\"kept\"" : "") + "><td>" + escape_html(rung.title) + "</td>" +
         range_cell("%.2f", rung.step_ms, rung.step_ms_interval) +
         range_cell("%.0f", rung.samples_per_s, rung.samples_per_s_interval) +
         cell(chart_number("%.1f", mebibytes(rung.peak_bytes))) +
         range_cell("%.2f", rung.time_to_target_s, rung.time_to_target_range) +
         range_cell("%.1f", 100 * rung.accuracy, {100 * rung.accuracy_range.low, 100 * rung.accuracy_range.high}) +
         ratio_cell(rung.speedup) + ratio_cell(rung.samples_per_s_over_start) +
         cell(chart_number("%.2f", rung.target_over_start)) + "<td class=\"verdict\">" +
         (rung.technique == "plain" ? "rung 0" : std::string(to_string(rung.verdict))) + "</td></tr>\n";
}

std::string figures_table(const LadderReport& report) {
  std::string rows = header({"technique", "step ms", "samples/s", "peak MiB", "target s", "accuracy %",
                             "over the rung below", "samples/s over the start", "target over the start", "verdict"}) +
                     "<tbody>\n" + figures_row(report.plain);
  for (const RungResult& rung : report.rungs) rows += figures_row(rung);
  return panel(
      "All rungs",
      "Small figures are 90 % intervals; of the time to the target and the accuracy, the least and the greatest "
      "of the seeds. Over the rung below: samples per second or, of a rung that is judged by it, the time to the "
      "target. "
      "Samples/s over the start is the product of those on the way; the target over the start is the ratio of the "
      "medians, from two seeds on.<span class=\"hint\"> The table can be pushed sideways.</span>",
      rows);
}

std::string expectation_row(const RungResult& rung) {
  const auto words = [](const char* question, Effect effect) {
    return "<td data-label=\"" + std::string(question) + "\">" + std::string(to_string(effect)) + "</td>";
  };
  std::string verdict(to_string(rung.verdict)), expectation = rung.expectation;
  std::erase(expectation, '`');
  if (rung.judged_by_target) verdict += ", judged by the time to the target";
  if (!rung.note.empty()) verdict += ": " + rung.note;
  if (!rung.runs_again.empty()) verdict += "; " + rung.runs_again;
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
      "scope=\"col\">measured</th><th scope=\"col\" class=\"words\">why, and what came of "
      "it</th></tr></thead>\n<tbody>\n";
  for (const RungResult& rung : report.rungs) rows += expectation_row(rung);
  return panel(
      "Expected and measured",
      "What the table of techniques says before anybody measures, and what this machine says about this model.", rows,
      "wordy");
}

// ---- the foot

std::string conditions(const LadderReport& report) {
  const LadderOptions& options = report.options;
  const std::string evaluated = options.eval_every_steps > 0 ? c10::str("every ", options.eval_every_steps, " steps")
                                                             : "each time training has gone about 3 % further, 6 % in "
                                                               "rungs that run once";
  return "<div class=\"panel\">\n<h2>How it was measured</h2>\n<dl>\n" + entry("model", report.model) +
         entry("data", report.data) + machine_entries(report.machine) +
         entry("comparisons",
               c10::str("the rung and the one below it in turns, ", options.pairs, " to ", options.max_pairs,
                        " pairs of windows; what changes the course of training, and the total, by ", options.seeds,
                        " seeds side by side")) +
         entry("accuracy", "looked at " + evaluated + ", outside the clock") +
         (report.plain.runs_again.empty() ? "" : entry("plain ran again", report.plain.runs_again)) +
         entry("took", format_seconds(report.seconds)) +
         "</dl>\n<details><summary>The recipe of the last rung that was kept</summary>\n<pre>" +
         escape_html(report.recipe_yaml) + "</pre></details>\n</div>\n";
}

}  // namespace

std::string ladder_page(const LadderReport& report) {
  const bool memory = report.options.goal == LadderGoal::memory;
  const std::string what = escape_html(report.model + " on " + report.data);
  return begin(what, memory ? "bellows ladder --memory" : "bellows ladder") + "<h1>" + headline(report) +
         "</h1>\n<p class=\"soft\">" + what +
         ": plain libtorch at the bottom, one technique more on each rung; what does not help is taken out again." +
         (report.interrupted ? " This ladder was stopped before its end." : "") +
         (report.failure.empty() ? "" : " The last comparison failed: " + escape_html(report.failure)) + "</p>\n" +
         cards(report) + "<div class=\"charts\">\n" +
         (memory ? memory_chart(report) + time_chart(report) : time_chart(report) + memory_chart(report)) +
         accuracy_chart(report) + shares_chart(report) + "</div>\n" + figures_table(report) +
         expectation_table(report) + conditions(report) + "</main>\n</body>\n</html>\n";
}

}  // namespace bellows::train
