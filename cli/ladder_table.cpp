#include "cli/ladder_table.h"

#include <c10/util/StringUtil.h>

#include <cmath>

namespace bellows::cli {

namespace {

using train::LadderGoal;
using train::LadderReport;
using train::RungResult;
using train::Verdict;

std::string percent(double share) {
  return number("%.1f %%", 100 * share);
}

/// Three digits or more.
std::string brief(double value) {
  return number(value < 9.995 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f", value);
}

std::string mebibytes(int64_t bytes) {
  return bytes > 0 ? brief(static_cast<double>(bytes) / (1 << 20)) : "-";
}

const char* short_word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kept:
      return "kept";
    case Verdict::no_effect:
      return "no effect";
    case Verdict::slower:
      return "slower";
    case Verdict::more_memory:
      return "more";
    case Verdict::misses_target:
      return "misses";
    case Verdict::later_at_target:
      return "later";
    case Verdict::does_not_apply:
      return "skipped";
    case Verdict::failed:
      return "failed";
    case Verdict::not_measured:
      return "not run";
  }
  return "";
}

Colour colour_of(const RungResult& rung) {
  if (rung.kept()) return Colour::green;
  return rung.verdict == Verdict::no_effect ? Colour::dim : Colour::yellow;
}

/// "1.25 (1.22-1.30)"; "1.25" without an interval.
std::string with_ends(const RatioInterval& ratio, const char* mark = " ") {
  if (!std::isfinite(ratio.low)) return brief(ratio.ratio) + (*mark == ' ' ? "" : mark);
  return brief(ratio.ratio) + mark + "(" + brief(ratio.low) + "-" + brief(ratio.high) + ")";
}

/// What the rung is judged by, over the rung below.
std::string gain(const RungResult& rung, LadderGoal goal) {
  if (rung.technique == "plain") return "";
  if (goal == LadderGoal::memory) return number("%.2f", rung.memory_ratio);
  if (!std::isfinite(rung.step_ms)) return "-";
  return with_ends(rung.speedup, rung.judged_by_target ? "*" : " ");
}

/// 68 letters.
std::string figures(const RungResult& rung, const std::string& target, double accuracy, LadderGoal goal) {
  return pad_right(rung.title, 17) + pad_left(brief(rung.step_ms), 7) +
         pad_left(number("%.0f", rung.samples_per_s), 7) + pad_left(mebibytes(rung.peak_bytes), 6) +
         pad_left(target, 8) + pad_left(number("%.1f", 100 * accuracy), 6) + pad_left(gain(rung, goal), 17);
}

/// "3.41 s (3.20 to 3.66)".
std::string with_range(double value, const train::Range& range) {
  const std::string text = number("%.2f s", value);
  if (!std::isfinite(range.low)) return text;
  return text + " (" + number("%.2f", range.low) + " to " + number("%.2f", range.high) + ")";
}

std::string times(const RatioInterval& ratio) {
  if (!std::isfinite(ratio.ratio)) return "-";
  const std::string text = number("%.2f times", ratio.ratio);
  if (!std::isfinite(ratio.low)) return text + " (one seed)";
  return text + " (90 %: " + number("%.2f", ratio.low) + " to " + number("%.2f", ratio.high) + ")";
}

std::string over_start_line(const RungResult& rung) {
  return pad_right(rung.title, 17) + pad_left(with_ends(rung.samples_per_s_over_start), 17) +
         pad_left(brief(rung.target_over_start), 8) + pad_left(brief(rung.memory_over_start), 8) +
         pad_left(std::string(to_string(rung.expected_speed)), 9) +
         pad_left(std::string(to_string(rung.measured_speed)), 6) +
         pad_left(std::string(to_string(rung.expected_memory)), 8) +
         pad_left(std::string(to_string(rung.measured_memory)), 6) + "\n";
}

std::string over_start_block(const Terminal& terminal, const LadderReport& report) {
  std::string text =
      "\n" +
      terminal.paint(Colour::bold, pad_left("helps speed?", 65) + pad_left("memory?", 14) + "\n" +
                                       pad_right("over the start", 17) + pad_left("samples/s (90 %)", 17) +
                                       pad_left("target", 8) + pad_left("memory", 8) + pad_left("exp.", 9) +
                                       pad_left("is", 6) + pad_left("exp.", 8) + pad_left("is", 6)) +
      "\n";
  for (const RungResult& rung : report.rungs) {
    if (std::isfinite(rung.step_ms)) text += over_start_line(rung);
  }
  return text;
}

std::string wrapped(const std::string& text) {
  std::string lines;
  for (const std::string& line : wrap(text, 79)) lines += line + "\n";
  return lines;
}

std::string shares_text(const RungResult& rung) {
  const train::StepShares& shares = rung.shares;
  if (shares.total_ms() == 0) return "";
  return wrapped("A step of " + rung.title + ": " + number("%.1f ms", shares.total_ms()) + "; load " +
                 number("%.1f", shares.load_ms) + ", forward " + number("%.1f", shares.forward_ms) + ", backward " +
                 number("%.1f", shares.backward_ms) + ", optimizer " + number("%.1f", shares.optimizer_ms) +
                 ", other " + number("%.1f", shares.other_ms) + ".");
}

std::string target_text(const LadderReport& report) {
  const RungResult& top = report.top();
  std::string text = "Time to " + percent(report.options.target_accuracy) + ": plain libtorch " +
                     with_range(report.plain.time_to_target_s, report.plain.time_to_target_range);
  if (&top != &report.plain) {
    text += ", all that was kept " + with_range(top.time_to_target_s, top.time_to_target_range);
  }
  return wrapped(text + c10::str("; median of ", report.plain.curves.size(),
                                 report.plain.curves.size() == 1 ? " seed." : " seeds (least to greatest)."));
}

/// What the table alone would leave in doubt.
std::string remarks(const LadderReport& report) {
  std::string left_out, text;
  bool starred = false;
  for (const RungResult& rung : report.rungs) {
    if (rung.verdict == Verdict::not_measured) left_out += (left_out.empty() ? "" : ", ") + rung.title;
    starred |= rung.judged_by_target && std::isfinite(rung.step_ms);
  }
  if (!left_out.empty()) text += wrapped("Not run (time limit): " + left_out + ".");
  if (starred) text += "* judged by the time to the target, not by samples/s\n";
  if (report.plain.curves.size() > 1) {
    text += wrapped("Step ms and samples/s of the table go by plain's first run, those in the files by all its runs: " +
                    number("%.1f ms", report.plain.step_ms) + " a step.");
  }
  for (const RungResult* rung : {&report.plain, &report.top()}) {
    if (!rung->runs_again.empty()) text += wrapped("Run again, " + rung->title + ": " + rung->runs_again + ".");
    if (&report.top() == &report.plain) break;
  }
  if (!report.failure.empty()) text += wrapped("The last comparison failed: " + report.failure);
  return text.empty() ? text : text + "\n";
}

std::string totals(const Terminal& terminal, const LadderReport& report) {
  if (&report.top() == &report.plain) return terminal.paint(Colour::bold, "Nothing was kept.") + "\n";
  std::string text;
  if (report.options.goal == LadderGoal::memory) {
    text += "Peak memory, against plain libtorch:           " +
            terminal.paint(Colour::bold, number("%.2f times less", report.top().memory_over_start)) + "\n";
  }
  return text + pad_right("Time to " + percent(report.options.target_accuracy) + ", against plain libtorch:", 47) +
         terminal.paint(Colour::bold, times(report.speedup)) +
         "\nSamples/s at equal batch and learning rate:    " + times(report.speedup_equal_batch) + "\n";
}

}  // namespace

std::string ladder_head(LadderGoal goal) {
  return pad_right("technique", 16) + pad_left("step ms", 7) + pad_left("samples/s", 10) + pad_left("MiB", 4) +
         pad_left("target", 8) + pad_left("acc.", 6) +
         pad_left(goal == LadderGoal::memory ? "less MiB" : "speed-up (90 %)", 17) + "\n";
}

std::string ladder_live_line(const train::LadderEvent& event, LadderGoal goal) {
  const bool running = std::isfinite(event.run_seconds);
  const std::string target = running ? number("%.1f", event.run_seconds) + "…" : brief(event.rung->time_to_target_s);
  return figures(*event.rung, target, running ? event.run_accuracy : event.rung->accuracy, goal) + " " + event.activity;
}

std::string ladder_row(const Terminal& terminal, const RungResult& rung, LadderGoal goal) {
  std::string text = figures(rung, brief(rung.time_to_target_s), rung.accuracy, goal);
  if (rung.technique != "plain") text += " " + terminal.paint(colour_of(rung), short_word(rung.verdict));
  text += "\n";
  if (rung.is_about_loading && !rung.bottleneck.empty()) {
    for (const std::string& line : wrap(rung.bottleneck, 76)) text += terminal.paint(Colour::dim, "  " + line) + "\n";
  }
  if (rung.kept() || rung.verdict == Verdict::no_effect) return text;
  for (const std::string& line : wrap(rung.note, 76)) text += terminal.paint(Colour::dim, "  " + line) + "\n";
  return text;
}

std::string ladder_foot(const Terminal& terminal, const LadderReport& report) {
  if (report.interrupted) {
    return "\nStopped after " + format_seconds(report.seconds) + "; what stands above was measured.\n";
  }
  const RungResult& top = report.top();
  const std::string text = over_start_block(terminal, report) + "\n" + remarks(report) + totals(terminal, report) +
                           target_text(report) + shares_text(report.plain);
  return &top == &report.plain ? text : text + shares_text(top);
}

}  // namespace bellows::cli
