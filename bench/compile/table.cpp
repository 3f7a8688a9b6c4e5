#include "bench/compile/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace bellows::bench {
namespace {

std::string figure(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return std::isfinite(value) ? text : "";
}

std::string time_of(const Row& row, const std::string& side) {
  for (const auto& [name, value] : row.peers) {
    if (name == side) return figure("%.4g", value);
  }
  return "";
}

/// Of all rows, in the order in which they come.
std::vector<std::string> sides_of(const std::vector<Row>& rows) {
  std::vector<std::string> sides;
  for (const Row& row : rows) {
    for (const auto& [name, value] : row.peers) {
      if (std::find(sides.begin(), sides.end(), name) == sides.end()) sides.push_back(name);
    }
  }
  return sides;
}

}  // namespace

std::string markdown_table(const std::vector<Row>& rows) {
  const std::vector<std::string> sides = sides_of(rows);
  std::string head = "| work, ms | ours, compiled |", line = "|---|---|", table, notes;
  for (const std::string& side : sides) {
    head += " " + side.substr(side.rfind("Python, ", 0) == 0 ? 8 : 0) + " |";
    line += "---|";
  }
  for (const Row& row : rows) {
    table += "| " + row.work + " | " + figure("%.4g", row.ours) + " |";
    for (const std::string& side : sides) table += " " + time_of(row, side) + " |";
    const std::string ratio = figure("%.2f", row.ratio_to_best_peer);
    table += ratio.empty() ? " |" : " " + ratio + " over " + row.best_peer + " |";
    table += " " + figure("%.4g", row.limit) + " |\n";
    notes += "- " + row.work + (row.equal ? "" : ", **different results**") + ": " + row.note + "\n";
  }
  return head + " speedup over the best tool | limit |\n" + line + "---|---|\n" + table + "\n" + notes;
}

}  // namespace bellows::bench
