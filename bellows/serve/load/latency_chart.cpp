#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "bellows/report/html.h"
#include "bellows/serve/load/load_report.h"

namespace bellows::serve {

namespace {

constexpr double width = 640, height = 400, left = 64, right = 616, top = 48, bottom = 344;

constexpr const char* style = R"(<style>
svg { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --line: #d5dbe1; --one: #1f6feb; --two: #d1651c; background: #fff }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #9aa7b4; --line: #36404a; --one: #6cb0ff; --two: #f0a35e; background: #12181f } }
text { font: 12px system-ui, sans-serif; fill: var(--soft) }
.title { font-size: 15px; fill: var(--ink) }
.grid { stroke: var(--line) }
.p50, .p99 { fill: none; stroke-width: 2; stroke-linejoin: round }
.p50 { stroke: var(--one) }
.p99 { stroke: var(--two) }
circle.p50 { fill: var(--one) }
circle.p99 { fill: var(--two) }
</style>
)";

std::string formatted(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + formatted("%.1f", value) + "\"";
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* css = "") {
  return "<text" + attribute("x", x) + attribute("y", y) + " text-anchor=\"" + anchor + "\"" +
         (*css == 0 ? "" : std::string(" class=\"") + css + "\"") + ">" + escape_html(text) + "</text>\n";
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return "<line class=\"grid\"" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
         attribute("y2", y2) + "/>\n";
}

/// Returns a distance between grid lines of 1, 2 or 5 times a power of ten, for about five lines.
double tick_of(double greatest) {
  const double power = std::pow(10, std::floor(std::log10(greatest / 5)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (greatest / 5 <= factor * power) return factor * power;
  return 10 * power;
}

std::string number(double value) {
  return formatted(value >= 10 || value == std::floor(value) ? "%.0f" : value >= 1 ? "%.1f" : "%.2g", value);
}

/// Throughput on a linear axis, and latency in milliseconds on a logarithmic one, because queueing multiplies it.
class Plot {
 public:
  explicit Plot(const std::vector<const LevelResult*>& levels) {
    low_ = 1e300;
    for (const LevelResult* level : levels) {
      rate_ = std::max(rate_, level->requests_per_s);
      low_ = std::min(low_, 1e3 * level->latency.p50_s);
      high_ = std::max(high_, 1e3 * level->latency.p99_s);
    }
    low_ = std::pow(10, std::floor(std::log10(low_)));
    high_ = std::max(std::pow(10, std::ceil(std::log10(high_) - 1e-9)), 10 * low_);
  }
  double x(double rate) const { return left + (right - left) * rate / (1.05 * rate_); }
  double y(double ms) const { return bottom - (bottom - top) * std::log(ms / low_) / std::log(high_ / low_); }

  std::string grid() const {
    std::string marks;
    const double tick = tick_of(rate_);
    for (int i = 0; i * tick <= 1.05 * rate_; ++i) {
      marks += grid_line(x(i * tick), top, x(i * tick), bottom);
      marks += text_at(x(i * tick), bottom + 18, "middle", number(i * tick));
    }
    for (double power = low_; power <= high_ * 1.001; power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        if (power * factor > high_ * 1.001) continue;
        marks += grid_line(left, y(power * factor), right, y(power * factor));
        marks += text_at(left - 6, y(power * factor) + 4, "end", number(power * factor));
      }
    }
    return marks;
  }

 private:
  double rate_ = 0, low_ = 0, high_ = 0;
};

std::string level_text(const LevelResult& result) {
  return result.level.concurrency > 0 ? "concurrency " + std::to_string(result.level.concurrency)
                                      : formatted("%g requests/s requested", result.level.rate);
}

std::string line(const Plot& plot, const std::vector<const LevelResult*>& levels, const char* css,
                 double LatencySummary::*latency) {
  std::string points, circles;
  for (const LevelResult* level : levels) {
    const double ms = 1e3 * (level->latency.*latency), x = plot.x(level->requests_per_s), y = plot.y(ms);
    points += formatted("%.1f", x) + "," + formatted("%.1f ", y);
    circles += std::string("<circle class=\"") + css + "\"" + attribute("cx", x) + attribute("cy", y) +
               " r=\"3.5\"><title>" +
               escape_html(level_text(*level) + ": " + formatted("%.1f requests/s, ", level->requests_per_s) + css +
                           formatted(" %.3f ms", ms)) +
               "</title></circle>\n";
  }
  return std::string("<polyline class=\"") + css + "\" points=\"" + points + "\"/>\n" + circles;
}

std::string key(double x, const char* css, const std::string& words) {
  return "<line class=\"" + std::string(css) + "\"" + attribute("x1", x) + attribute("y1", 36) +
         attribute("x2", x + 24) + attribute("y2", 36) + "/>\n" + text_at(x + 30, 40, "start", words);
}

std::string labels(const Plot& plot, const std::vector<const LevelResult*>& levels) {
  std::string marks;
  for (const LevelResult* level : levels) {
    const std::string text =
        level->level.concurrency > 0 ? std::to_string(level->level.concurrency) : formatted("%g/s", level->level.rate);
    marks += text_at(plot.x(level->requests_per_s), plot.y(1e3 * level->latency.p99_s) - 8, "middle", text);
  }
  return marks;
}

}  // namespace

std::string latency_chart(const LoadReport& report) {
  std::vector<const LevelResult*> levels;
  for (const LevelResult& level : report.levels)
    if (level.requests > 0 && level.latency.p50_s > 0) levels.push_back(&level);
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + formatted("%.0f ", width) +
      formatted("%.0f", height) + "\" role=\"img\" aria-labelledby=\"title desc\">\n" + "<title id=\"title\">" +
      escape_html("Latency of " + report.model) +
      "</title>\n<desc id=\"desc\">Latency (median and 99th percentile) of each level of load against its "
      "throughput.</desc>\n" +
      style + text_at(left, 20, "start", "Latency of " + report.model, "title");
  if (levels.empty()) {
    return svg + text_at((left + right) / 2, (top + bottom) / 2, "middle", "No request was answered successfully.") +
           "</svg>\n";
  }
  const Plot plot(levels);
  const bool closed = levels.front()->level.concurrency > 0;
  svg += plot.grid() + key(right - 300, "p50", "median (p50)") +
         key(right - 180, "p99", closed ? "p99, with concurrency" : "p99, with rate");
  svg += line(plot, levels, "p99", &LatencySummary::p99_s) + line(plot, levels, "p50", &LatencySummary::p50_s);
  svg += labels(plot, levels) + text_at((left + right) / 2, height - 16, "middle", "requests per second") +
         text_at(8, top - 12, "start", "ms");
  return svg + "</svg>\n";
}

}  // namespace bellows::serve
