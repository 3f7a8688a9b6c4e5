#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/ladder/ladder.h"

namespace bellows::train {

// Charts as inline SVG, 440 units wide, for a page whose style sheet has the classes "bottom", "top", "kept",
// "dropped", "part-0" … "part-4", "grid", "axis", "whisker" and "target". Text is escaped.

/// What a mark stands for, as a class of the style sheet.
enum class MarkRole { bottom, top, kept, dropped };

struct ChartText {
  std::string id;           ///< unique in the page
  std::string title;        ///< read out in place of the chart
  std::string description;  ///< what it shows, in a sentence or two
};

struct ChartBar {
  std::string label;
  std::string shown;  ///< the value as text
  double value = 0;   ///< not finite: no bar
  Range range;        ///< drawn as a whisker; NaN: none
  MarkRole role = MarkRole::kept;
  bool faint = false;  ///< class "faint"
};
/// One horizontal bar a row; empty where no bar has a value.
std::string bar_chart(const ChartText& text, const std::string& unit, const std::vector<ChartBar>& bars);

struct ChartLine {
  std::string label;
  std::vector<std::pair<double, double>> points;
  MarkRole role = MarkRole::kept;
};
/// Lines over time in seconds, from `low` to 1, those of bottom and top above the others; a dashed line at `target`.
/// Empty without points.
std::string line_chart(const ChartText& text, double low, double target, const std::vector<ChartLine>& lines);

struct ChartStack {
  std::string label;
  std::vector<double> parts;
};
/// One horizontal bar a row, made of parts that stand side by side.
std::string stack_chart(const ChartText& text, const std::string& unit, const std::vector<ChartStack>& stacks);

/// printf for one number, "–" when it is not finite.
std::string chart_number(const char* format, double value);

}  // namespace bellows::train
