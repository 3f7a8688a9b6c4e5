#include "bellows/ladder/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "bellows/core/stats.h"
#include "bellows/report/html.h"

namespace bellows::train {

namespace {

constexpr double chart_width = 440, row_height = 28, bar_height = 13, line_height = 12;
constexpr double label_width = 160, value_width = 54;  // left and right of the bars
constexpr size_t label_letters = 21;                   // number of letters that fit

const char* class_of(MarkRole role) {
  static constexpr std::array names = {"bottom", "top", "kept", "dropped"};
  return names.at(static_cast<size_t>(role));
}

std::string coordinate(double value) {
  return chart_number("%.1f", value);
}

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + coordinate(value) + "\"";
}

std::string svg_line(const char* css, double x1, double y1, double x2, double y2) {
  return std::string("<line class=\"") + css + "\"" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
         attribute("y2", y2) + "/>\n";
}

std::string svg_rect(const std::string& css, double x, double y, double width, double height) {
  return "<rect class=\"" + css + "\"" + attribute("x", x) + attribute("y", y) +
         attribute("width", std::max(0.0, width)) + attribute("height", height) + " rx=\"2\"/>\n";
}

/// Params: anchor – "start", "middle", "end": the position of `x` in the text
std::string svg_text(const std::string& css, double x, double y, const char* anchor, const std::string& text) {
  return "<text class=\"" + css + "\"" + attribute("x", x) + attribute("y", y) + " text-anchor=\"" + anchor + "\">" +
         escape_html(text) + "</text>\n";
}

std::string whole_chart(const ChartText& text, double height, const std::string& marks) {
  return "<svg viewBox=\"0 0 " + coordinate(chart_width) + " " + coordinate(height) +
         "\" role=\"img\" aria-labelledby=\"" + text.id + "-title " + text.id + "-desc\">\n<title id=\"" + text.id +
         "-title\">" + escape_html(text.title) + "</title>\n<desc id=\"" + text.id + "-desc\">" +
         escape_html(text.description) + "</desc>\n" + marks + "</svg>\n";
}

/// Returns a distance between grid lines of 1, 2 or 5 times a power of ten.
double tick_of(double greatest) {
  const double rough = std::max(greatest, 1e-12) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

/// Maps values from 0 to the maximum to the width between `left` and `right`.
struct HorizontalScale {
  HorizontalScale(double the_greatest, double the_left, double the_right)
      : greatest(the_greatest > 0 ? the_greatest : 1), left(the_left), right(the_right) {}
  double operator()(double value) const { return left + (right - left) * value / greatest; }

  /// Lines from `top` to `bottom` with their values below.
  std::string grid(double top, double bottom, const std::string& unit) const {
    std::string marks;
    const double tick = tick_of(greatest);
    const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(tick) + 1e-9)));
    for (int i = 0; i * tick <= greatest * 1.001; ++i) {
      char value[32];
      std::snprintf(value, sizeof value, "%.*f", digits, i * tick);
      const double x = (*this)(i * tick);
      marks += svg_line("grid", x, top, x, bottom);
      marks += svg_text("axis", x, bottom + 15, "middle", i == 0 ? "0" : value);
    }
    return marks + svg_text("axis", chart_width, bottom + 15, "end", unit);
  }

  double greatest, left, right;
};

double greatest_of(const std::vector<ChartBar>& bars) {
  double greatest = 0;
  for (const ChartBar& bar : bars) {
    if (std::isfinite(bar.value)) greatest = std::max(greatest, bar.value);
    if (std::isfinite(bar.range.high)) greatest = std::max(greatest, bar.range.high);
  }
  return greatest;
}

/// Breaks a long label into two lines and cuts the rest.
std::vector<std::string> label_lines(const std::string& label) {
  const auto cut = [](const std::string& text) {
    return text.size() <= label_letters ? text : text.substr(0, label_letters - 1) + "…";
  };
  const size_t space = label.size() <= label_letters ? std::string::npos : label.rfind(' ', label_letters);
  if (space == std::string::npos) return {cut(label)};
  return {label.substr(0, space), cut(label.substr(space + 1))};
}

std::string one_bar(const ChartBar& bar, const HorizontalScale& x, double y) {
  const std::string role = class_of(bar.role);
  const double middle = y + row_height / 2;
  std::string marks = "<g>\n<title>" + escape_html(bar.label + ": " + bar.shown) + "</title>\n";
  const std::vector<std::string> lines = label_lines(bar.label);
  for (size_t i = 0; i < lines.size(); ++i) {
    const double below = static_cast<double>(i) - static_cast<double>(lines.size() - 1) / 2;
    marks += svg_text("label " + role, 0, middle + 4 + below * line_height, "start", lines[i]);
  }
  if (std::isfinite(bar.value)) {
    marks += svg_rect("mark " + role + (bar.faint ? " faint" : ""), x.left, middle - bar_height / 2,
                      x(bar.value) - x.left, bar_height);
  }
  if (std::isfinite(bar.range.low) && bar.range.high > bar.range.low) {
    const double low = x(bar.range.low), high = x(bar.range.high);
    marks += svg_line("whisker", low, middle, high, middle) + svg_line("whisker", low, middle - 4, low, middle + 4) +
             svg_line("whisker", high, middle - 4, high, middle + 4);
  }
  return marks + svg_text("value " + role, chart_width, middle + 4, "end", bar.shown) + "</g>\n";
}

/// The vertical position of an accuracy on the line chart.
struct Plot {
  double left = 36, right = chart_width - 8, top = 10, bottom = 232, low = 0;
  double y(double accuracy) const { return bottom - (bottom - top) * (accuracy - low) / (1 - low); }
};

std::string accuracy_grid(const Plot& plot) {
  std::string marks;
  const double tick = plot.low >= 0.9 ? 0.02 : plot.low >= 0.6 ? 0.1 : 0.2;
  for (double accuracy = 1; accuracy >= plot.low - 1e-9; accuracy -= tick) {
    marks += svg_line("grid", plot.left, plot.y(accuracy), plot.right, plot.y(accuracy));
    marks += svg_text("axis", plot.left - 5, plot.y(accuracy) + 4, "end", chart_number("%.0f", 100 * accuracy));
  }
  return marks;
}

std::string one_line(const ChartLine& line, const HorizontalScale& x, const Plot& plot) {
  if (line.points.empty()) return "";
  std::string points;
  for (const auto& [seconds, accuracy] : line.points) {
    points += (points.empty() ? "" : " ") + coordinate(x(seconds)) + "," + coordinate(plot.y(accuracy));
  }
  const auto& [seconds, accuracy] = line.points.back();
  const std::string role = class_of(line.role);
  return "<g>\n<title>" + escape_html(line.label) + "</title>\n<polyline class=\"line " + role + "\" points=\"" +
         points + "\"/>\n<circle class=\"end " + role + "\"" + attribute("cx", x(seconds)) +
         attribute("cy", plot.y(accuracy)) + " r=\"" + (line.role >= MarkRole::kept ? "2" : "3.5") + "\"/>\n</g>\n";
}

}  // namespace

std::string chart_number(const char* format, double value) {
  return std::isfinite(value) ? format_number(format, value) : "–";
}

std::string bar_chart(const ChartText& text, const std::string& unit, const std::vector<ChartBar>& bars) {
  if (greatest_of(bars) == 0) return "";
  const HorizontalScale x(greatest_of(bars), label_width, chart_width - value_width);
  const double bottom = row_height * static_cast<double>(bars.size()) + 2;
  std::string marks = x.grid(0, bottom, unit);
  for (size_t i = 0; i < bars.size(); ++i) marks += one_bar(bars[i], x, row_height * static_cast<double>(i));
  return whole_chart(text, bottom + 20, marks);
}

std::string line_chart(const ChartText& text, double low, double target, const std::vector<ChartLine>& lines) {
  const Plot plot{.low = low};
  double longest = 0;
  for (const ChartLine& line : lines) {
    for (const auto& point : line.points) longest = std::max(longest, point.first);
  }
  if (longest == 0) return "";
  const HorizontalScale x(longest, plot.left, plot.right - 4);
  std::string marks = x.grid(plot.top, plot.bottom, "s") + accuracy_grid(plot);
  marks += svg_line("target", plot.left, plot.y(target), plot.right, plot.y(target));
  marks += "<clipPath id=\"" + text.id + "-clip\"><rect" + attribute("x", plot.left) + attribute("y", 0) +
           attribute("width", chart_width - plot.left) + attribute("height", plot.bottom) +
           "/></clipPath>\n<g clip-path=\"url(#" + text.id + "-clip)\">\n";
  for (const MarkRole role : {MarkRole::dropped, MarkRole::kept, MarkRole::bottom, MarkRole::top}) {
    for (const ChartLine& line : lines) {
      if (line.role == role) marks += one_line(line, x, plot);
    }
  }
  return whole_chart(text, plot.bottom + 22, marks + "</g>\n");
}

std::string stack_chart(const ChartText& text, const std::string& unit, const std::vector<ChartStack>& stacks) {
  constexpr double thick = 22, row = 34;
  double greatest = 0;
  for (const ChartStack& stack : stacks) {
    double sum = 0;
    for (const double part : stack.parts) sum += part;
    greatest = std::max(greatest, sum);
  }
  const HorizontalScale x(greatest, label_width, chart_width - 26);
  const double bottom = row * static_cast<double>(stacks.size()) + 2;
  std::string marks = x.grid(0, bottom, unit);
  for (size_t i = 0; i < stacks.size(); ++i) {
    const double y = row * static_cast<double>(i) + (row - thick) / 2;
    marks += svg_text("label", 0, y + thick / 2 + 4, "start", stacks[i].label);
    double so_far = 0;
    for (size_t part = 0; part < stacks[i].parts.size(); ++part) {
      const double next = so_far + stacks[i].parts[part];
      marks += svg_rect("part-" + std::to_string(part), x(so_far), y, x(next) - x(so_far) - 1, thick);
      so_far = next;
    }
  }
  return whole_chart(text, bottom + 20, marks);
}

}  // namespace bellows::train
