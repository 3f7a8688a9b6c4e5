#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/ladder/ladder.h"

namespace bellows::train {

// Charts as inline SVG, 440 units wide. The page's style sheet must define the classes "bottom", "top", "kept",
// "dropped", "part-0" … "part-4", "grid", "axis", "whisker" and "target". Text is escaped.

/// The role of a mark, as a class of the style sheet.
enum class MarkRole { bottom, top, kept, dropped };

struct ChartText {
  std::string id;           ///< unique within the page
  std::string title;        ///< read aloud instead of the chart
  std::string description;  ///< describes the chart in one or two sentences
};

struct ChartBar {
  std::string label;  ///< one or two lines; the rest is cut
  std::string shown;  ///< the value as text
  double value = 0;   ///< not finite: no bar
  Range range;        ///< drawn as a whisker; NaN: none
  MarkRole role = MarkRole::kept;
  bool faint = false;  ///< class "faint"
};
/// One horizontal bar per row. Empty if no bar has a value.
std::string bar_chart(const ChartText& text, const std::string& unit, const std::vector<ChartBar>& bars);

struct ChartLine {
  std::string label;
  std::vector<std::pair<double, double>> points;
  MarkRole role = MarkRole::kept;
};
/// Lines over time in seconds, from `low` to 1, with those of bottom and top in front, and a dashed line at `target`.
/// Empty if there are no points.
std::string line_chart(const ChartText& text, double low, double target, const std::vector<ChartLine>& lines);

struct ChartStack {
  std::string label;
  std::vector<double> parts;
};
/// One horizontal bar per row, which consists of adjacent parts.
std::string stack_chart(const ChartText& text, const std::string& unit, const std::vector<ChartStack>& stacks);

/// printf for one number; "–" if it is not finite.
std::string chart_number(const char* format, double value);

}  // namespace bellows::train
