#include "cli/tables/comparison_table.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <string>
#include <vector>

#include "bellows/core/stats.h"
#include "bellows/ladder/comparison/comparison.h"

namespace bellows::cli {

namespace {

using train::RungResult;
using train::Verdict;

constexpr size_t recipe_width = train::parallel_title_width;

/// The lines of the column of titles. Words that are too long for the column are cut.
std::vector<std::string> title_lines(const std::string& title) {
  std::vector<std::string> lines = wrap(title, recipe_width);
  for (std::string& line : lines) {
    if (display_width(line) <= recipe_width) continue;
    while (display_width(line) >= recipe_width) {  // UTF-8: removes whole letters
      while ((line.back() & 0xC0) == 0x80) line.pop_back();
      line.pop_back();
    }
    line += "…";
  }
  return lines;
}

const char* comparison_word(const RungResult& rung) {
  switch (rung.verdict) {
    case Verdict::kept:
      return "faster";
    case Verdict::no_effect:
      return "same";
    case Verdict::slower:
      return "slower";
    case Verdict::more_memory:
    case Verdict::misses_target:
    case Verdict::later_at_target:
    case Verdict::less_accurate:
      return "missed";
    case Verdict::does_not_apply:
      return "skipped";
    case Verdict::failed:
      return "failed";
    case Verdict::not_measured:
      return "not run";
  }
  return "";
}

std::string mebibytes_text(double bytes) {
  return bytes >= 0 ? brief_number(bytes / (1 << 20)) : "-";
}

std::string speed_text(const RungResult& rung) {
  const RatioInterval& ratio = rung.speedup;
  if (rung.technique == "plain" || !std::isfinite(ratio.ratio)) return rung.technique == "plain" ? "" : "-";
  return brief_number(ratio.ratio) + "× (" + brief_number(ratio.low) + "-" + brief_number(ratio.high) + ")";
}

/// The columns after the title.
std::string comparison_columns(const std::string& place, const std::string& step, const std::string& peak,
                               const std::string& sent, const std::string& target, const std::string& accuracy,
                               const std::string& speedup) {
  return pad_left(place, 6) + pad_left(step, 7) + pad_left(peak, 6) + pad_left(sent, 6) + pad_left(target, 7) +
         pad_left(accuracy, 6) + pad_left(speedup, 18);
}

std::string measured(const RungResult& rung, double target, double accuracy) {
  const double peak = rung.peak_bytes > 0 ? static_cast<double>(rung.peak_bytes) : RungResult::unknown;
  return comparison_columns(c10::str(rung.ranks, " × ", rung.threads), brief_number(rung.step_ms), mebibytes_text(peak),
                            mebibytes_text(rung.sent_bytes), brief_number(target), number("%.1f", 100 * accuracy),
                            speed_text(rung));
}

}  // namespace

std::string comparison_head() {
  return pad_right("", recipe_width) +
         comparison_columns("ranks", "step", "peak", "sent", "target", "acc.", "speedup") + "\n" +
         pad_right("configuration", recipe_width) +
         comparison_columns("× thr.", "ms", "MiB", "MiB", "s", "%", "(90 % interval)") + "\n";
}

std::string comparison_live_line(const train::LadderEvent& event) {
  const RungResult& rung = *event.rung;
  const bool running = std::isfinite(event.run_seconds);
  const std::string title = title_lines(rung.title).front();
  return pad_right(title, recipe_width) +
         measured(rung, running ? event.run_seconds : rung.time_to_target_s,
                  running ? event.run_accuracy : rung.accuracy) +
         " " + event.activity;
}

std::string comparison_row(const Terminal& terminal, const RungResult& rung) {
  const std::vector<std::string> lines = title_lines(rung.title);
  std::string text;
  for (size_t i = 0; i + 1 < lines.size(); ++i) text += lines[i] + "\n";
  text += pad_right(lines.back(), recipe_width) + measured(rung, rung.time_to_target_s, rung.accuracy);
  if (rung.technique == "plain") return text + "\n";
  text += " " + terminal.paint(rung.kept() ? Colour::green : Colour::yellow, comparison_word(rung)) + "\n";
  const bool said = rung.kept() || rung.verdict == Verdict::no_effect || rung.verdict == Verdict::slower;
  if (said || rung.note.empty()) return text;
  for (const std::string& line : wrap(std::string(to_string(rung.verdict)) + ": " + rung.note, 76))
    text += terminal.paint(Colour::dim, "  " + line) + "\n";
  return text;
}

std::string comparison_foot(const Terminal& terminal, const train::LadderReport& report) {
  if (report.interrupted)
    return "\nStopped after " + format_seconds(report.seconds) + ". Only the results so far are shown.\n";
  std::string text =
      "\n" + wrapped("The speedup is the ratio of the samples per second, compared with " + report.plain.title +
                     ". The peak is that of one rank, as the allocator counts it. Sent bytes are counted per rank and "
                     "step; for replicas, they are the bytes that all replicas copy and add.");
  for (const RungResult& rung : report.rungs) {
    if (rung.verdict == Verdict::not_measured)
      text += wrapped("Not measured because of the time limit: " + rung.title + ".");
  }
  const RungResult& top = report.top();
  if (!has_measured_rung(report)) {
    text += terminal.paint(Colour::bold, "No configuration was measured.") + "\n";
  } else if (&top == &report.plain) {
    text += terminal.paint(Colour::bold, "Nothing was faster than " + report.plain.title + ".") + "\n";
  } else {
    const RatioInterval& ratio = top.speedup;
    const std::string faster = number("%.2f× faster", ratio.ratio) + " (90 % interval " + number("%.2f", ratio.low) +
                               " to " + number("%.2f", ratio.high) + ")";
    text += terminal.paint(Colour::bold,
                           wrapped("Fastest: " + top.title + ", " + faster + " than " + report.plain.title + "."));
  }
  return report.failure.empty() ? text : text + wrapped("The comparison failed: " + report.failure);
}

}  // namespace bellows::cli
