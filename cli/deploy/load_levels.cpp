#include "cli/deploy/load_levels.h"

#include <cmath>
#include <cstdlib>

#include "cli/option_values.h"
#include "cli/options.h"

namespace bellows::cli {

namespace {

constexpr size_t most_levels = 1000;

double level_of(const std::string& text, const std::string& option, bool whole) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool valid = !text.empty() && *end == '\0' && std::isfinite(value) && value > 0 &&
                     (!whole || (value == std::floor(value) && value <= 65536));
  if (!valid) {
    throw UsageError(option + ": expected " + (whole ? "integers from 1 to 65536" : "numbers above 0") +
                     ", such as 4 or 1,8 or 1:16 or 4:12:4, got \"" + text + "\".");
  }
  return value;
}

}  // namespace

std::vector<double> parse_levels(const std::string& text, const std::string& option, bool whole) {
  std::vector<double> levels;
  for (const std::string& part : split_at(text, ',')) {
    const std::vector<std::string> ends = split_at(part, ':');
    const double low = level_of(ends[0], option, whole);
    const double high = ends.size() > 1 ? level_of(ends[1], option, whole) : low;
    const double step = ends.size() > 2 ? level_of(ends[2], option, whole) : 0;
    if (ends.size() > 3 || high < low)
      throw UsageError(option + ": expected FROM:TO or FROM:TO:STEP in increasing order, got \"" + part + "\".");
    for (double level = low; level<high; level = step> 0 ? level + step : 2 * level) {
      levels.push_back(level);
      if (levels.size() > most_levels) throw UsageError(option + ": \"" + text + "\" has more than 1000 levels.");
    }
    levels.push_back(high);
  }
  return levels;
}

}  // namespace bellows::cli
