#include "bellows/ladder/comparison/comparison_page.h"

#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/core/stats.h"
#include "bellows/ladder/comparison/comparison.h"
#include "bellows/ladder/page_parts.h"
#include "bellows/report/html.h"

namespace bellows::train {

namespace {

using namespace page;

std::string comparison_headline(const LadderReport& report) {
  if (report.interrupted) return "Stopped before the end";
  if (!has_measured_rung(report)) return "No configuration was measured";
  if (&report.top() == &report.plain) return "Nothing was faster than " + escape_html(report.plain.title);
  return escape_html(report.top().title) + ": <strong>" + chart_number("%.2f×", report.speedup.ratio) +
         "</strong> faster than " + escape_html(report.plain.title);
}

std::string step_chart(const LadderReport& report) {
  const std::string svg = bar_chart({.id = "time",
                                     .title = "Time of a step by configuration",
                                     .description = "One bar per configuration. The table below has the numbers."},
                                    "ms", step_bars(report));
  return figure(
      "Time of a step",
      "Milliseconds of a step of all ranks together. Whiskers show 90 % intervals. Configurations with larger "
      "batches take longer per step.",
      roles_key(report), svg);
}

std::string comparison_cells(const RungResult& rung) {
  const double sent = rung.sent_bytes / (1 << 20);
  return "<tr" + std::string(rung.kept() ? " class=\"kept\"" : "") + "><td>" + escape_html(rung.title) + "</td>" +
         cell(place_text(rung)) + range_cell("%.2f", rung.step_ms, rung.step_ms_interval) +
         range_cell("%.0f", rung.samples_per_s, rung.samples_per_s_interval) +
         cell(chart_number("%.1f", mebibytes(rung.peak_bytes))) + cell(chart_number("%.3g", sent)) +
         range_cell("%.2f", rung.time_to_target_s, rung.time_to_target_range) +
         range_cell("%.1f", 100 * rung.accuracy, {100 * rung.accuracy_range.low, 100 * rung.accuracy_range.high}) +
         ratio_cell(rung.speedup) + cell(chart_number("%.2f×", rung.target_over_start)) + "<td class=\"verdict\">" +
         (rung.technique == "plain" ? "rung 0"
          : rung.kept()             ? "faster"
                                    : std::string(to_string(rung.verdict))) +
         (rung.note.empty() ? "" : "<small>" + escape_html(rung.note) + "</small>") + "</td></tr>\n";
}

std::string comparison_table(const LadderReport& report) {
  std::string rows =
      header({"configuration", "processes × threads", "step ms", "samples/s", "peak MiB per rank", "sent MiB per step",
              "time to target (s)", "accuracy %", "speedup", "faster to target", "verdict"}) +
      "<tbody>\n" + comparison_cells(report.plain);
  for (const RungResult& rung : report.rungs) rows += comparison_cells(rung);
  return panel(
      "All configurations",
      "Small numbers are 90 % intervals. For the time to target and the accuracy, they are the minimum and the "
      "maximum over the seeds. The speedup is the ratio of the samples per second, compared with " +
          escape_html(report.plain.title) +
          ". The peak is the memory of tensors in one rank. Sent bytes are counted per rank; for replicas, they "
          "are the bytes that all replicas copy and add.<span class=\"hint\"> Scroll the table "
          "horizontally.</span>",
      rows);
}

std::string comparison_conditions(const LadderReport& report) {
  const LadderOptions& options = report.options;
  return "<div class=\"panel\">\n<h2>How it was measured</h2>\n<dl>\n" + entry("model", report.model) +
         entry("data", report.data) + machine_entries(report.machine) +
         entry("cores", "several ranks share the threads of " + report.plain.title +
                            ". Each rank has the same number of threads, rounded down, but at least one") +
         entry("comparisons", c10::str("each configuration alternates with ", report.plain.title, " in ", options.pairs,
                                       " to ", options.max_pairs, " pairs of timed windows")) +
         entry("target", c10::str(chart_number("%.4g", 100 * options.target_accuracy), " % held-out accuracy, ",
                                  options.seeds, options.seeds == 1 ? " seed" : " seeds")) +
         entry("duration", format_seconds(report.seconds)) +
         "</dl>\n<details><summary>The recipe of the fastest configuration</summary>\n<pre>" +
         escape_html(report.recipe_yaml) + "</pre></details>\n</div>\n";
}

}  // namespace

std::string comparison_page(const LadderReport& report) {
  const std::string subject = report.model + " on " + report.data;
  return begin_report(subject, "bellows ladder") + "<h1>" + comparison_headline(report) + "</h1>\n<p class=\"soft\">" +
         escape_html(subject) + ". Each configuration is compared with " + escape_html(report.plain.title) + "." +
         (report.interrupted ? " This comparison was stopped before the end." : "") +
         (report.failure.empty() ? "" : " The comparison failed: " + escape_html(report.failure)) +
         "</p>\n<div class=\"charts\">\n" + step_chart(report) +
         memory_chart(report, "The maximum of the live tensor bytes in one rank during training.") + "</div>\n" +
         comparison_table(report) + comparison_conditions(report) + "</main>\n</body>\n</html>\n";
}

}  // namespace bellows::train
