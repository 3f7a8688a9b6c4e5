#include "bellows/ladder/inference_page.h"

#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/core/stats.h"
#include "bellows/ladder/page_parts.h"
#include "bellows/report/html.h"

namespace bellows::train {

namespace {

using namespace page;

constexpr const char* arrow = " → ";

bool has_accuracy(const LadderReport& report) {
  return std::isfinite(report.plain.accuracy);
}

std::string percent(double share) {
  return chart_number("%.2f\u00a0%%", 100 * share);
}

std::string inference_headline(const LadderReport& report) {
  if (report.interrupted) return "Stopped before the end";
  if (&report.top() == &report.plain) return "No technique was kept";
  const std::string faster = "<strong>" + chart_number("%.2f×", report.speedup.ratio) + "</strong> faster inference";
  if (!has_accuracy(report)) return faster;
  return faster + ", accuracy " + percent(report.plain.accuracy) + arrow + percent(report.top().accuracy);
}

std::string bytes_of(int64_t bytes) {
  return bytes > 0 ? format_bytes(static_cast<double>(bytes)) : "–";
}

std::string inference_cards(const LadderReport& report) {
  if (report.interrupted) return "";
  const RungResult& top = report.top();
  const std::string between = "eager → all kept techniques";
  const std::string quality =
      has_accuracy(report) ? card(percent(report.plain.accuracy) + arrow + percent(top.accuracy), "accuracy", between)
                           : card(percent(top.output_difference), "difference of the outputs",
                                  "relative to the outputs of eager; the model has no accuracy");
  return "<div class=\"cards\">\n" +
         card(chart_number("%.2f×", report.speedup.ratio), "more samples/s", ratio_detail(report.speedup)) +
         card(chart_number("%.2f", report.start_step_ms) + arrow + chart_number("%.2f\u00a0ms", report.top_step_ms),
              c10::str("time per batch of ", report.plain.batch_size), between) +
         quality +
         card(bytes_of(report.plain.model_bytes) + arrow + bytes_of(top.model_bytes), "size of the model", between) +
         card(bytes_of(report.plain.peak_bytes) + arrow + bytes_of(top.peak_bytes), "peak memory of tensors", between) +
         "</div>\n";
}

std::string batch_chart(const LadderReport& report) {
  const std::string svg =
      bar_chart({.id = "time",
                 .title = "Time per batch by rung",
                 .description = "One bar per rung, starting with eager. The table below has the numbers."},
                "ms", step_bars(report));
  return figure("Time per batch",
                c10::str("Milliseconds of the forward pass of ", report.plain.batch_size,
                         " samples, without loading. Whiskers show 90 % intervals. Each rung adds its technique to the "
                         "previous configuration."),
                roles_key(report), svg);
}

std::string size_chart(const LadderReport& report) {
  const std::string svg = bar_chart({.id = "size",
                                     .title = "Size of the model by rung",
                                     .description = "One bar per rung. The table below has the numbers."},
                                    "MiB", size_bars(report, &RungResult::model_bytes));
  return figure("Size of the model", "The parameters and buffers.", roles_key(report), svg);
}

std::string inference_row(const RungResult& rung) {
  return "<tr" + std::string(rung.kept() ? " class=\"kept\"" : "") + "><td>" + escape_html(rung.title) + "</td>" +
         range_cell("%.2f", rung.step_ms, rung.step_ms_interval) +
         range_cell("%.0f", rung.samples_per_s, rung.samples_per_s_interval) +
         cell(chart_number("%.1f", mebibytes(rung.peak_bytes))) +
         cell(chart_number("%.1f", mebibytes(rung.model_bytes))) + cell(chart_number("%.2f", 100 * rung.accuracy)) +
         cell(chart_number("%.3g", 100 * rung.output_difference)) + ratio_cell(rung.speedup) +
         ratio_cell(rung.samples_per_s_over_start) + "<td class=\"verdict\">" +
         (rung.technique == "plain" ? "rung 0" : std::string(to_string(rung.verdict))) + "</td></tr>\n";
}

std::string inference_table(const LadderReport& report) {
  std::string rows = header({"technique", "batch ms", "samples/s", "peak MiB", "size MiB", "accuracy %", "difference %",
                             "speedup over previous configuration", "samples/s vs eager", "verdict"}) +
                     "<tbody>\n" + inference_row(report.plain);
  for (const RungResult& rung : report.rungs) rows += inference_row(rung);
  return panel(
      "All rungs",
      "Small numbers are 90 % intervals. The peak is the memory of tensors, including the weights. Only faster "
      "rungs are evaluated, so the others have no accuracy. The difference is that of the outputs from the "
      "outputs of eager, relative to these outputs. Samples/s vs eager is the product of the speedups up to "
      "this rung.<span class=\"hint\"> Scroll the table horizontally.</span>",
      rows);
}

std::string inference_conditions(const LadderReport& report) {
  const LadderOptions& options = report.options;
  const std::string bound =
      has_accuracy(report)
          ? c10::str("the accuracy may fall by ", chart_number("%.4g", 100 * options.max_drop), " percentage points")
          : c10::str("the outputs may differ by ", chart_number("%.4g", 100 * options.max_difference),
                     " %, because there is no accuracy");
  return "<div class=\"panel\">\n<h2>How it was measured</h2>\n<dl>\n" + entry("model", report.model) +
         entry("data", report.data) + machine_entries(report.machine) +
         entry("comparisons", c10::str("each technique and the previous configuration alternate in ", options.pairs,
                                       " to ", options.max_pairs, " pairs of timed windows, in their own processes")) +
         entry("accuracy", "compared with eager, " + bound) + entry("duration", format_seconds(report.seconds)) +
         "</dl>\n</div>\n";
}

}  // namespace

std::string inference_page(const LadderReport& report) {
  const std::string subject = report.model + " on " + report.data;
  return begin_report(subject, "bellows ladder --inference") + "<h1>" + inference_headline(report) +
         "</h1>\n<p class=\"soft\">" + escape_html(subject) +
         ". Each rung adds one technique to the previous configuration, starting with eager. A technique is kept only "
         "if "
         "the model is faster and its accuracy holds." +
         (report.interrupted ? " This ladder was stopped before the end." : "") +
         (report.failure.empty() ? "" : " The last comparison failed: " + escape_html(report.failure)) + "</p>\n" +
         inference_cards(report) + "<div class=\"charts\">\n" + batch_chart(report) +
         memory_chart(report, "The maximum of the live tensor bytes during a forward pass, including the weights.") +
         size_chart(report) + "</div>\n" + inference_table(report) + expectation_table(report) +
         inference_conditions(report) + "</main>\n</body>\n</html>\n";
}

}  // namespace bellows::train
