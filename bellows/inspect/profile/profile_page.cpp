#include <c10/util/StringUtil.h>

#include <algorithm>

#include "bellows/core/stats.h"
#include "bellows/inspect/profile/profile.h"
#include "bellows/report/html.h"

namespace bellows::inspect {

namespace {

constexpr size_t table_rows = 40;

constexpr const char* profile_style = R"(
:root { --l0: #b8410c; --l1: #d9a21b; --l2: #3b5f86; --l3: #2f7d5b; --l4: #7a5195; }
@media (prefers-color-scheme: dark) { :root { --l0: #ff8a4c; --l2: #6f9bcb; --l3: #5cc09a; --l4: #b48ad0; } }
.shares { display: flex; height: 26px; border-radius: 6px; overflow: hidden; margin: 8px 0; }
.verdict { font-size: 1.15rem; color: var(--ink); }
td.number, th.number { text-align: right; }
td:first-child, th:first-child { text-align: left; }
.meter { background: var(--line); border-radius: 3px; width: 90px; height: 9px; display: inline-block; }
.meter i { display: block; height: 9px; border-radius: 3px; background: var(--l3); }
)";

std::string limit_colour(size_t limit) {
  return c10::str("var(--l", limit, ")");
}

std::string number_cell(const char* format, double value) {
  return "<td class=\"number\">" + format_number(format, value) + "</td>";
}

std::string text_cell(std::string_view text) {
  return "<td>" + escape_html(text) + "</td>";
}

/// A column of a table.
struct Column {
  std::string title{};
  bool number = false;
};

std::string table_section(const std::string& title, const std::string& words, const std::vector<Column>& columns,
                          const std::string& rows) {
  if (rows.empty()) return "";
  std::string head;
  for (const Column& column : columns)
    head += (column.number ? "<th class=\"number\">" : "<th>") + column.title + "</th>";
  return "<section><h2>" + title + "</h2><p>" + words + "</p><div class=\"scroll\"><table><tr>" + head + "</tr>\n" +
         rows + "</table></div></section>\n";
}

std::string shares_section(const StepProfile& profile) {
  const auto seconds = profile.seconds_by_limit();
  std::string bars, key;
  for (size_t i = 0; i < limits; ++i) {
    if (seconds[i] == 0 && static_cast<Limit>(i) == Limit::communication) continue;  // a single process
    const double share = profile.step_s > 0 ? 100 * seconds[i] / profile.step_s : 0;
    const std::string name(to_string(static_cast<Limit>(i)));
    bars += c10::str("<div title=\"", name, "\" style=\"width:", format_number("%.2f", share),
                     "%;background:", limit_colour(i), "\"></div>");
    key += c10::str("<span><i style=\"background:", limit_colour(i), "\"></i>", name, " ",
                    format_number("%.3f", 1e3 * seconds[i]), " ms (", format_number("%.1f", share), " %)</span>");
  }
  return "<section><h2>Where the time goes</h2><div class=\"shares\">" + bars + "</div><div class=\"key\">" + key +
         "</div></section>\n";
}

std::string phases_section(const StepProfile& profile) {
  std::string rows;
  for (const StepPhase& phase : profile.phases)
    rows += "<tr>" + text_cell(phase.name.empty() ? "(other)" : phase.name) + number_cell("%.3f", 1e3 * phase.seconds) +
            "</tr>\n";
  return table_section("Phases", "Mean time per step.", {{"phase"}, {"ms", true}}, rows);
}

std::string operators_section(const StepProfile& profile) {
  std::string rows;
  for (size_t i = 0; i < std::min(table_rows, profile.ops.size()); ++i) {
    const ProfiledOp& op = profile.ops[i];
    const double share = op.seconds > 0 ? 100 * op.least_seconds(profile.peaks) / op.seconds : 0;
    rows += "<tr>" + text_cell(op.op + (op.backward ? " (backward)" : "")) + text_cell(op.phase) +
            number_cell("%.0f", op.calls) + number_cell("%.3f", op.flops / 1e9) + number_cell("%.2f", op.bytes / 1e6) +
            number_cell("%.3f", 1e3 * op.seconds) + "<td class=\"number\">" + format_number("%.0f", share) +
            " %</td><td><span class=\"meter\"><i style=\"width:" + format_number("%.0f", std::min(share, 100.0)) +
            "%\"></i></span></td>" + text_cell(to_string(op.limit(profile.peaks))) + "</tr>\n";
  }
  return table_section(
      "Roofline of the operators",
      c10::str(
          "Peaks of this machine: ", format_number("%.0f", profile.peaks.fp32_flops / 1e9), " GFLOP/s in fp32, ",
          format_number("%.1f", profile.peaks.bytes_per_second / 1e9), " GB/s, ",
          format_number("%.2f", 1e6 * profile.peaks.call_s),
          " µs per call. The share is the shortest time at these peaks divided by the measured time. It can exceed "
          "100 % if data stay in the caches."),
      {{"operator"},
       {"phase"},
       {"calls", true},
       {"GFLOP", true},
       {"MB", true},
       {"ms", true},
       {"share of peak", true},
       {""},
       {"limit"}},
      rows);
}

std::string syncs_section(const StepProfile& profile) {
  std::string rows;
  for (const SyncEvent& event : profile.syncs)
    rows += "<tr>" + number_cell("%.0f", static_cast<double>(event.count)) + text_cell(event.op) +
            text_cell(event.reason) + text_cell(event.site) + "</tr>\n";
  return table_section("Implicit synchronizations",
                       "Calls for which the host waits for an accelerator, in one step. On a CPU, they do not wait.",
                       {{"calls", true}, {"operator"}, {"reason"}, {"called at"}}, rows);
}

std::string copies_section(const StepProfile& profile) {
  std::string rows;
  for (size_t i = 0; i < std::min(table_rows, profile.copies.size()); ++i) {
    const ReorderingCopy& copy = profile.copies[i];
    rows += "<tr>" + text_cell(copy.op) + text_cell(copy.sizes) +
            text_cell(copy.images ? "between image layouts" : "after a permutation") + number_cell("%.0f", copy.calls) +
            text_cell(format_bytes(copy.bytes)) + number_cell("%.3f", 1e3 * copy.seconds) + text_cell(copy.module) +
            text_cell(copy.site) + "</tr>\n";
  }
  return table_section(
      "Copies that only change the order of elements", "Means per step.",
      {{"operator"}, {"sizes"}, {"kind"}, {"calls", true}, {"bytes"}, {"ms", true}, {"module"}, {"called at"}}, rows);
}

std::string sizes_section(const StepProfile& profile) {
  std::string rows;
  for (size_t i = 0; i < std::min(table_rows, profile.odd_sizes.size()); ++i) {
    const OddSizes& odd = profile.odd_sizes[i];
    rows += "<tr>" + text_cell(odd.op) + text_cell(odd.sizes) + number_cell("%.0f", odd.calls) +
            number_cell("%.3f", odd.flops / 1e9) + number_cell("%.3f", 1e3 * odd.seconds) + text_cell(odd.module) +
            "</tr>\n";
  }
  return table_section("Sizes that are not multiples of 8", "Operands of matmuls, and filters of convolutions.",
                       {{"operator"}, {"sizes"}, {"calls", true}, {"GFLOP", true}, {"ms", true}, {"module"}}, rows);
}

}  // namespace

std::string StepProfile::html_style() {
  return TensorTimeline::html_style() + profile_style;
}

std::string StepProfile::html_sections() const {
  return shares_section(*this) + phases_section(*this) + operators_section(*this) + syncs_section(*this) +
         copies_section(*this) + sizes_section(*this) + (memory ? memory->html_sections() : "");
}

std::string StepProfile::to_html(const std::string& title) const {
  return begin_page(title, html_style()) + "<h1>" + escape_html(title) + "</h1>\n<p class=\"verdict\">" +
         escape_html(verdict()) + "</p>\n" + html_sections() + "</main></body></html>\n";
}

}  // namespace bellows::inspect
