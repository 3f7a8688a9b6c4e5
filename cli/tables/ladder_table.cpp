#include "cli/tables/ladder_table.h"

#include <c10/util/StringUtil.h>

#include <cmath>

#include "bellows/core/stats.h"

namespace bellows::cli {

namespace {

using train::LadderGoal;
using train::LadderReport;
using train::RungResult;
using train::Verdict;

std::string percent(double share) {
  return number("%.1f %%", 100 * share);
}

std::string brief_mebibytes(int64_t bytes) {
  return bytes > 0 ? brief_number(static_cast<double>(bytes) / (1 << 20)) : "-";
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
    case Verdict::misses_target:
    case Verdict::later_at_target:
    case Verdict::less_accurate:
      return "dropped";
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

/// "1.25×"; "-" if there is none.
std::string ratio_text(double ratio) {
  return std::isfinite(ratio) ? brief_number(ratio) + "×" : "-";
}

/// "1.25× (1.22-1.30)"; "1.25×" without an interval.
std::string with_ends(const RatioInterval& ratio, const char* mark = " ") {
  if (!std::isfinite(ratio.low)) return ratio_text(ratio.ratio) + (*mark == ' ' ? "" : mark);
  return ratio_text(ratio.ratio) + mark + "(" + brief_number(ratio.low) + "-" + brief_number(ratio.high) + ")";
}

/// The gain over the previous configuration by which the rung is judged.
std::string gain(const RungResult& rung, LadderGoal goal) {
  if (rung.technique == "plain") return "";
  if (goal == LadderGoal::memory) return ratio_text(rung.memory_ratio);
  if (!std::isfinite(rung.step_ms)) return "-";
  return with_ends(rung.speedup, rung.judged_by_target ? "*" : " ");
}

constexpr size_t title_width = 17;

/// A long title takes several lines; the numbers follow the last one.
std::string title_column(const RungResult& rung) {
  const std::vector<std::string> lines = wrap(rung.title, title_width);
  std::string text;
  for (size_t i = 0; i + 1 < lines.size(); ++i) text += lines[i] + "\n";
  return text + pad_right(lines.back(), title_width);
}

/// The title in one line, cut after the last word that fits.
std::string short_title(const RungResult& rung) {
  if (display_width(rung.title) <= title_width) return pad_right(rung.title, title_width);
  return pad_right(wrap(rung.title, title_width - 1).front() + "…", title_width);
}

/// The columns after the title: 51 columns of the terminal.
std::string measured_columns(const std::string& step, const std::string& samples, const std::string& peak,
                             const std::string& target, const std::string& accuracy, const std::string& speedup) {
  return pad_left(step, 6) + pad_left(samples, 8) + pad_left(peak, 6) + pad_left(target, 7) + pad_left(accuracy, 6) +
         pad_left(speedup, 18);
}

/// The share in percent; two digits after the point if `exact`.
std::string accuracy_text(double accuracy, bool exact) {
  return number(exact && accuracy < 0.99995 ? "%.2f" : "%.1f", 100 * accuracy);
}

/// The numbers after the title.
/// Params: target – time to target; a ladder for inference shows the size of the model instead
std::string figures(const RungResult& rung, const std::string& target, double accuracy, LadderGoal goal) {
  const bool inference = goal == LadderGoal::inference;
  return measured_columns(brief_number(rung.step_ms), number("%.0f", rung.samples_per_s),
                          brief_mebibytes(rung.peak_bytes), inference ? brief_mebibytes(rung.model_bytes) : target,
                          accuracy_text(accuracy, inference), gain(rung, goal));
}

/// "3.41 s (3.20 to 3.66)".
std::string with_range(double value, const train::Range& range) {
  const std::string text = number("%.2f s", value);
  if (!std::isfinite(range.low)) return text;
  return text + " (" + number("%.2f", range.low) + " to " + number("%.2f", range.high) + ")";
}

/// "3.21× faster (90 % interval 2.90 to 3.50)".
std::string speedup_text(const RatioInterval& ratio) {
  if (!std::isfinite(ratio.ratio)) return "not measured";
  const bool faster = ratio.ratio >= 1;
  const std::string text = faster ? number("%.2f× faster", ratio.ratio) : number("%.2f× slower", 1 / ratio.ratio);
  if (!std::isfinite(ratio.low)) return text + " (one seed)";
  const double low = faster ? ratio.low : 1 / ratio.high, high = faster ? ratio.high : 1 / ratio.low;
  return text + " (90 % interval " + number("%.2f", low) + " to " + number("%.2f", high) + ")";
}

std::string over_start_line(const RungResult& rung, LadderGoal goal) {
  const std::string second = goal == LadderGoal::inference ? number("%.2g %%", 100 * rung.output_difference)
                                                           : ratio_text(rung.target_over_start);
  return title_column(rung) + pad_left(with_ends(rung.samples_per_s_over_start), 18) + pad_left(second, 10) +
         pad_left(ratio_text(rung.memory_over_start), 8) + pad_left(to_string(rung.expected_speed), 7) +
         pad_left(to_string(rung.measured_speed), 6) + pad_left(to_string(rung.expected_memory), 7) +
         pad_left(to_string(rung.measured_memory), 6) + "\n";
}

std::string over_start_block(const Terminal& terminal, const LadderReport& report) {
  const bool inference = report.options.goal == LadderGoal::inference;
  const std::string head = pad_right("compared with", title_width) + pad_left("samples/s", 18) +
                           pad_left(inference ? "outputs" : "faster", 10) + pad_left("less", 8) +
                           pad_left("helps speed", 13) + pad_left("helps memory", 13) + "\n" +
                           pad_right(report.plain.title, title_width) + pad_left("(90 % interval)", 18) +
                           pad_left(inference ? "differ by" : "to target", 10) + pad_left("memory", 8) +
                           pad_left("exp.", 7) + pad_left("meas.", 6) + pad_left("exp.", 7) + pad_left("meas.", 6);
  std::string text = "\n" + terminal.paint(Colour::bold, head) + "\n";
  for (const RungResult& rung : report.rungs) {
    if (std::isfinite(rung.step_ms)) text += over_start_line(rung, report.options.goal);
  }
  return text;
}

std::string shares_text(const RungResult& rung) {
  const train::StepShares& shares = rung.shares;
  if (shares.total_ms() == 0) return "";
  return wrapped("A step of " + rung.title + " takes " + number("%.1f ms", shares.total_ms()) + ": load " +
                 number("%.1f", shares.load_ms) + ", forward " + number("%.1f", shares.forward_ms) + ", backward " +
                 number("%.1f", shares.backward_ms) + ", optimizer " + number("%.1f", shares.optimizer_ms) +
                 ", other " + number("%.1f", shares.other_ms) + ".");
}

std::string target_text(const LadderReport& report) {
  if (report.options.goal == LadderGoal::inference) return "";
  const RungResult& top = report.top();
  std::string text = "Time to " + percent(report.options.target_accuracy) + ": plain libtorch " +
                     with_range(report.plain.time_to_target_s, report.plain.time_to_target_range);
  if (&top != &report.plain) {
    text += ", all kept techniques " + with_range(top.time_to_target_s, top.time_to_target_range);
  }
  return wrapped(text + c10::str(". Each time is the median of ", report.plain.curves.size(),
                                 report.plain.curves.size() == 1 ? " seed." : " seeds (with minimum and maximum)."));
}

/// Explanations of the table.
std::string remarks(const LadderReport& report) {
  std::string left_out, text;
  bool starred = false;
  for (const RungResult& rung : report.rungs) {
    if (rung.verdict == Verdict::not_measured) left_out += (left_out.empty() ? "" : ", ") + rung.title;
    starred |= rung.judged_by_target && std::isfinite(rung.step_ms);
  }
  if (!left_out.empty()) text += wrapped("Not measured because of the time limit: " + left_out + ".");
  if (starred) text += "* judged by the time to the target instead of samples/s\n";
  if (report.plain.curves.size() > 1) {
    text += wrapped(
        "Step times and samples/s in the table are based on the first run of plain libtorch. The written files use "
        "all of its runs: " +
        number("%.1f ms", report.plain.step_ms) + " per step.");
  }
  for (const RungResult* rung : {&report.plain, &report.top()}) {
    if (!rung->runs_again.empty()) text += wrapped("Repeated runs of " + rung->title + ": " + rung->runs_again + ".");
    if (&report.top() == &report.plain) break;
  }
  if (!report.failure.empty()) text += wrapped("The last comparison failed: " + report.failure);
  return text.empty() ? text : text + "\n";
}

constexpr size_t label_width = 35;

/// "  Accuracy:          97.77 % → 97.49 %".
std::string change_line(const std::string& label, const std::string& before, const std::string& after) {
  return pad_right("  " + label + ":", label_width) + before + " → " + after + "\n";
}

std::string inference_totals(const Terminal& terminal, const LadderReport& report) {
  const RungResult &start = report.plain, &top = report.top();
  const auto exact = [](double share) { return number("%.2f %%", 100 * share); };
  const auto size = [](int64_t bytes) { return bytes > 0 ? format_bytes(static_cast<double>(bytes)) : "-"; };
  std::string text = pad_right("  Samples/s:", label_width) +
                     terminal.paint(Colour::bold, speedup_text(report.speedup)) + "\n" +
                     change_line(c10::str("Time per batch of ", start.batch_size),
                                 number("%.2f ms", report.start_step_ms), number("%.2f ms", report.top_step_ms));
  text += std::isfinite(start.accuracy)
              ? change_line("Accuracy", exact(start.accuracy), exact(top.accuracy))
              : pad_right("  Difference of the outputs:", label_width) + exact(top.output_difference) + "\n";
  return text + change_line("Size of the model", size(start.model_bytes), size(top.model_bytes)) +
         change_line("Peak memory", size(start.peak_bytes), size(top.peak_bytes)) +
         wrapped(
             "The speedup and the times above come from one last comparison of both configurations, so they can differ "
             "from the table, whose rungs ran at other times.");
}

std::string totals(const Terminal& terminal, const LadderReport& report) {
  if (&report.top() == &report.plain) return terminal.paint(Colour::bold, "No technique was kept.") + "\n";
  std::string text = "Compared with " + report.plain.title + ":\n";
  if (report.options.goal == LadderGoal::inference) return text + inference_totals(terminal, report);
  if (report.options.goal == LadderGoal::memory) {
    text += pad_right("  Peak memory:", label_width) +
            terminal.paint(Colour::bold, number("%.2f× less", report.top().memory_over_start)) + "\n";
  }
  return text + pad_right("  Time to " + percent(report.options.target_accuracy) + " accuracy:", label_width) +
         terminal.paint(Colour::bold, speedup_text(report.speedup)) + "\n" +
         pad_right("  Samples/s at equal batch and lr:", label_width) + speedup_text(report.speedup_equal_batch) + "\n";
}

}  // namespace

std::string ladder_head(LadderGoal goal) {
  const bool memory = goal == LadderGoal::memory, inference = goal == LadderGoal::inference;
  return pad_right("", title_width) +
         measured_columns(inference ? "batch" : "step", "samples", "peak", inference ? "size" : "target", "acc.",
                          memory ? "less memory" : "speedup") +
         "\n" + pad_right("technique", title_width) +
         measured_columns("ms", "per s", "MiB", inference ? "MiB" : "s", "%", memory ? "" : "(90 % interval)") + "\n";
}

std::string ladder_live_line(const train::LadderEvent& event, LadderGoal goal) {
  const bool running = std::isfinite(event.run_seconds);
  const char* format = event.run_seconds < 99.95 ? "%.1f" : "%.0f";
  const std::string target =
      running ? number(format, event.run_seconds) + "…" : brief_number(event.rung->time_to_target_s);
  return short_title(*event.rung) +
         figures(*event.rung, target, running ? event.run_accuracy : event.rung->accuracy, goal) + " " + event.activity;
}

std::string ladder_row(const Terminal& terminal, const RungResult& rung, LadderGoal goal) {
  std::string text = title_column(rung) + figures(rung, brief_number(rung.time_to_target_s), rung.accuracy, goal);
  if (rung.technique != "plain") text += " " + terminal.paint(colour_of(rung), short_word(rung.verdict));
  text += "\n";
  if (rung.is_about_loading && !rung.bottleneck.empty()) {
    for (const std::string& line : wrap(rung.bottleneck, 76)) text += terminal.paint(Colour::dim, "  " + line) + "\n";
  }
  if ((rung.kept() && rung.note.empty()) || rung.verdict == Verdict::no_effect) return text;
  const std::string reason =
      rung.kept() ? rung.note : std::string(to_string(rung.verdict)) + (rung.note.empty() ? "" : ": " + rung.note);
  for (const std::string& line : wrap(reason, 76)) text += terminal.paint(Colour::dim, "  " + line) + "\n";
  return text;
}

std::string ladder_foot(const Terminal& terminal, const LadderReport& report) {
  if (report.interrupted) {
    return "\nStopped after " + format_seconds(report.seconds) + ". Only the results so far are shown.\n";
  }
  const RungResult& top = report.top();
  const std::string text = over_start_block(terminal, report) + "\n" + remarks(report) + totals(terminal, report) +
                           target_text(report) + shares_text(report.plain);
  return &top == &report.plain ? text : text + shares_text(top);
}

}  // namespace bellows::cli
