#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "bellows/ladder/chart.h"
#include "bellows/ladder/ladder.h"

/// Parts that the HTML pages of all ladders share. Parameters are HTML, except those of entries, keys and charts, which are
/// text.
namespace bellows::train::page {

/// Returns everything before the headline.
/// Params: title – text
///         kind  – the kind of ladder, HTML
std::string begin_report(const std::string& title, const std::string& kind);
/// Returns "1.20 to 1.30", or an empty text if an end is not finite.
std::string interval_text(const char* format, double low, double high);
/// Returns NaN if `bytes` is 0.
double mebibytes(int64_t bytes);
/// Returns an empty text if there is no chart.
std::string figure(const std::string& caption, const std::string& explanation, const std::string& key,
                   const std::string& chart);
std::string key_entry(const std::string& css, const std::string& words);
std::string card(const std::string& figure_text, const std::string& words, const std::string& detail);
/// Returns a cell of a table. The detail is in a second line.
std::string cell(const std::string& value, const std::string& detail = "");
std::string range_cell(const char* format, double value, const Range& range);
std::string header(std::initializer_list<const char*> names);
/// Returns a table that scrolls sideways on narrow screens.
std::string panel(const std::string& title, const std::string& explanation, const std::string& rows,
                  const char* css = "");
std::string entry(const std::string& name, const std::string& value);
std::string joined(const std::vector<std::string>& words);
/// Returns the machine's rows of a list of conditions.
std::string machine_entries(const Machine& machine);

// ---- parts of the pages of a LadderReport

/// Returns rung 0, and then the rungs that were measured.
std::vector<const RungResult*> measured_rungs(const LadderReport& report);
MarkRole role_of(const LadderReport& report, const RungResult& rung);
/// Returns the interval of a ratio in words.
std::string ratio_detail(const RatioInterval& ratio);
std::string ratio_cell(const RatioInterval& ratio);
/// Returns one bar per measured rung, which shows the time of a step in milliseconds and its interval.
std::vector<ChartBar> step_bars(const LadderReport& report);
/// Returns one bar per measured rung, which shows a size in MiB.
/// Params: bytes – the size, such as &RungResult::peak_bytes. A rung whose size is 0 has no bar
std::vector<ChartBar> size_bars(const LadderReport& report, int64_t RungResult::*bytes);
/// Returns the legend of the marks.
std::string roles_key(const LadderReport& report);
std::string memory_chart(const LadderReport& report, const std::string& explanation);
/// Returns the table of expected and measured effects.
std::string expectation_table(const LadderReport& report);

}  // namespace bellows::train::page
