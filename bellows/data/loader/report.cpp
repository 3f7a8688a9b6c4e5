#include "bellows/data/loader/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bellows/core/stats.h"
#include "bellows/report/json_text.h"

namespace bellows::data {

namespace {

constexpr size_t kLineLetters = 79;

template <class... Args>
std::string printed(const char* format, Args... args) {
  char text[160];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

/// "812 ns", "8.1 us", "12.3 ms".
std::string brief_time(double us) {
  if (us < 1) return printed("%.0f ns", 1e3 * us);
  if (us < 999.5) return printed(us < 99.5 ? "%.1f us" : "%.0f us", us);
  return us < 999.5e3 ? printed("%.1f ms", us / 1e3) : printed("%.1f s", us / 1e6);
}

/// Breaks lines at spaces; lines after the first are indented by two.
std::string in_lines(const std::string& text) {
  std::string lines, line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > kLineLetters) {
      lines += line + "\n";
      line = " ";
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return lines + line + "\n";
}

std::string plural(int64_t count, const char* thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

std::string stage_lines(const LoaderReport& report) {
  double sum = 0;
  for (const StageTime& stage : report.stages) sum += stage.total_s;
  std::string text = "  stage        share       total  per sample   95 % below\n";
  for (size_t i = 0; i < kLoadStages; ++i) {
    const StageTime& stage = report.stages[i];
    if (stage.total_s == 0) continue;
    text += printed("  %-10s %5.0f %%  %10s  %10s   %10s\n", std::string(to_string(static_cast<LoadStage>(i))).c_str(),
                    100 * stage.total_s / sum, format_seconds(stage.total_s).c_str(), brief_time(stage.mean_us).c_str(),
                    brief_time(stage.p95_us).c_str());
  }
  return text;
}

/// The queue over time, one character per point: 0 none ready, 9 all.
std::string queue_line(const LoaderReport& report) {
  if (report.queue.size() < 2 || report.prefetch == 0) return "";
  constexpr size_t width = 40;
  std::string digits;
  for (size_t i = 0; i < std::min(width, report.queue.size()); ++i) {
    const size_t first = i * report.queue.size() / std::min(width, report.queue.size());
    const double full = report.queue[first].ready / static_cast<double>(report.prefetch);
    digits += static_cast<char>('0' + std::lround(9 * std::clamp(full, 0.0, 1.0)));
  }
  return "Queue over time (0: empty, 9: full): " + digits + "\n";
}

std::string trouble_line(const LoaderReport& report) {
  if (report.skipped == 0 && report.retries == 0) return "";
  std::string kinds;
  for (size_t i = 0; i < kLoadStages; ++i) {
    if (report.skipped_in[i] == 0) continue;
    kinds += (kinds.empty() ? "" : ", ") + std::to_string(report.skipped_in[i]) + " at " +
             std::string(to_string(static_cast<LoadStage>(i)));
  }
  return in_lines("Skipped: " + plural(report.skipped, "sample") + (kinds.empty() ? "" : " (" + kinds + ")") + "; " +
                  plural(report.retries, "read") + " retried.");
}

nlohmann::ordered_json stages_json(const LoaderReport& report) {
  nlohmann::ordered_json json;
  for (size_t i = 0; i < kLoadStages; ++i) {
    const StageTime& stage = report.stages[i];
    json[std::string(to_string(static_cast<LoadStage>(i)))] = {{"total_s", stage.total_s},
                                                               {"mean_us", stage.mean_us},
                                                               {"p95_us", stage.p95_us},
                                                               {"skipped", report.skipped_in[i]}};
  }
  return json;
}

}  // namespace

std::string_view to_string(Remedy remedy) {
  static constexpr std::string_view words[] = {"none",          "unknown",     "more threads",      "bigger prefetch",
                                               "cache decoded", "pack",        "cheaper transform", "faster storage",
                                               "faster read",   "fewer copies"};
  return words[static_cast<size_t>(remedy)];
}

double LoaderReport::samples_per_s() const {
  return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
}

double LoaderReport::wait_share() const {
  return seconds > 0 ? std::min(1.0, wait_s / seconds) : 0;
}

std::string LoaderReport::bottleneck() const {
  double sum = 0;
  size_t most = 0;
  for (size_t i = 0; i < kLoadStages; ++i) {
    sum += stages[i].total_s;
    if (stages[i].total_s > stages[most].total_s) most = i;
  }
  if (sum == 0) return advice().sentence;
  return advice().sentence +
         printed(" Most of a sample's time: %s, %.0f %% of ",
                 std::string(data::to_string(static_cast<LoadStage>(most))).c_str(), 100 * stages[most].total_s / sum) +
         brief_time(1e6 * sum / static_cast<double>(std::max<int64_t>(1, samples))) + ".";
}

std::string LoaderReport::to_string() const {
  std::string text = in_lines("Loader: " + plural(samples, "sample") + " in " + format_seconds(seconds) +
                              printed(", %.0f samples/s; ", samples_per_s()) + plural(threads, "thread") +
                              (auto_threads ? printed(" (auto, %.1f on average)", mean_threads) : "") + ", prefetch " +
                              std::to_string(prefetch) + ".");
  text += stage_lines(*this);
  text += in_lines(
      printed("Waiting for batches took %.1f %% of the time: ", 100 * wait_share()) + format_seconds(wait_s) + ", " +
      format_seconds(first_wait_s) + " of this time for the first batch of " + plural(epochs, "epoch") +
      ". Finished batches waited " + format_seconds(ready_s) + " to be consumed" +
      (threads > 0 ? printed("; on average, %.1f of %.0f were ready.", mean_ready, static_cast<double>(prefetch))
                   : std::string(".")));
  text += queue_line(*this) + trouble_line(*this);
  return text + in_lines(advice().sentence);
}

std::string LoaderReport::to_json() const {
  nlohmann::ordered_json json = {{"seconds", seconds},
                                 {"epochs", epochs},
                                 {"batches", batches},
                                 {"samples", samples},
                                 {"samples_per_s", samples_per_s()},
                                 {"wait_s", wait_s},
                                 {"first_wait_s", first_wait_s},
                                 {"wait_share", wait_share()},
                                 {"model_s", model_s},
                                 {"ready_s", ready_s},
                                 {"prefetch", prefetch},
                                 {"mean_ready", mean_ready},
                                 {"threads", threads},
                                 {"auto_threads", auto_threads},
                                 {"mean_threads", mean_threads},
                                 {"busy_s", busy_s},
                                 {"cpu_share", cpu_share},
                                 {"blocked_share", blocked_share},
                                 {"process_cpu_s", process_cpu_s},
                                 {"cores", cores},
                                 {"major_faults", major_faults},
                                 {"read_ahead_s", read_ahead_s},
                                 {"skipped", skipped},
                                 {"retries", retries},
                                 {"source_samples", source_samples},
                                 {"picture_bytes", picture_bytes},
                                 {"cached", cached}};
  json["stages"] = stages_json(*this);
  json["queue"] = nlohmann::ordered_json::array();
  for (const QueuePoint& point : queue) json["queue"].push_back({point.at_s, point.ready});
  const Advice best = advice();
  json["advice"] = {{"remedy", data::to_string(best.remedy)}, {"sentence", best.sentence}, {"gain", best.gain}};
  return json_text(json, 1) + "\n";
}

}  // namespace bellows::data
