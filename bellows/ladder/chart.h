#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/ladder/ladder.h"

namespace bellows::train {

// Charts as inline SVG, 440 units wide. The style sheet of the page must define the classes "bottom", "top", "kept",
// "dropped", "part-0" … "part-4", "grid", "axis", "whisker" and "target". All text is escaped.

/// The role of a bar or line. It becomes a class of the style sheet.
enum class MarkRole { bottom, top, kept, dropped };

struct ChartText {
  std::string id;           ///< ID, unique within the page
  std::string title;        ///< screen readers read it instead of the chart
  std::string description;  ///< description of the chart in one or two sentences
};

struct ChartBar {
  std::string label;  ///< one or two lines; longer text is cut off
  std::string shown;  ///< the value as text
  double value = 0;   ///< if it is not finite, there is no bar
  Range range;        ///< drawn as a whisker; if it is NaN, there is no whisker
  MarkRole role = MarkRole::kept;
  bool faint = false;  ///< whether the bar has the class "faint"
};
/// Returns a chart with one horizontal bar per row. Returns an empty text if no bar has a value.
std::string bar_chart(const ChartText& text, const std::string& unit, const std::vector<ChartBar>& bars);

struct ChartLine {
  std::string label;
  std::vector<std::pair<double, double>> points;
  MarkRole role = MarkRole::kept;
};
/// Returns a chart of lines over time in seconds. The vertical axis ranges from `low` to 1. Lines with the roles
/// `bottom` and `top` are drawn in front of the others. A dashed line marks `target`. Returns an empty text if there
/// are no points.
std::string line_chart(const ChartText& text, double low, double target, const std::vector<ChartLine>& lines);

struct ChartStack {
  std::string label;
  std::vector<double> parts;
};
/// Returns a chart with one horizontal bar per row. Each bar consists of adjacent parts.
std::string stack_chart(const ChartText& text, const std::string& unit, const std::vector<ChartStack>& stacks);

/// Formats one number like printf. Returns "–" if it is not finite.
std::string chart_number(const char* format, double value);

}  // namespace bellows::train
