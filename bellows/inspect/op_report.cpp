#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "bellows/core/stats.h"
#include "bellows/inspect/op_counter.h"
#include "bellows/report/json_text.h"

namespace bellows::inspect {

namespace {

/// "1.738 G": powers of 1000.
std::string with_suffix(int64_t number) {
  static constexpr const char* suffixes[] = {"", " K", " M", " G", " T", " P"};
  if (number < 1000) return std::to_string(number);
  double value = static_cast<double>(number);
  int power = 0;
  while (value >= 999.95 && power < 5) value /= 1000, ++power;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%s", value, suffixes[power]);
  return text;
}

/// A name in at most `width` characters: its end is what tells names apart.
std::string fitted(const std::string& name, size_t width) {
  return name.size() <= width ? name : "..." + name.substr(name.size() - width + 3);
}

std::string count_line(const std::string& name, const OpCount& count, int64_t all_flops) {
  char text[160];
  const double percent = all_flops ? 100.0 * static_cast<double>(count.flops) / static_cast<double>(all_flops) : 0;
  std::snprintf(text, sizeof text, "%-37s %7s %9s %5.1f%% %10s %6.1f\n", fitted(name, 37).c_str(),
                with_suffix(count.calls).c_str(), with_suffix(count.flops).c_str(), percent,
                format_bytes(static_cast<double>(count.bytes)).c_str(), count.host_us / 1000);
  return text;
}

std::string heading(const char* first) {
  char text[160];
  std::snprintf(text, sizeof text, "%-37s %7s %9s %6s %10s %6s\n", first, "calls", "FLOPs", "", "bytes", "ms");
  return text + std::string(79, '-') + "\n";
}

int levels(const std::string& path) {
  return path.empty() ? 0 : 1 + static_cast<int>(std::count(path.begin(), path.end(), '.'));
}

nlohmann::json to_object(const OpCount& count) {
  return {{"calls", count.calls}, {"flops", count.flops}, {"bytes", count.bytes}, {"host_us", count.host_us}};
}

}  // namespace

OpCount& OpCount::operator+=(const OpCount& other) {
  calls += other.calls;
  flops += other.flops;
  bytes += other.bytes;
  host_us += other.host_us;
  return *this;
}

OpCount OpReport::total() const {
  OpCount sum;
  for (const OpRow& row : rows) sum += row.count;
  return sum;
}

std::vector<OpRow> OpReport::by_operator() const {
  std::map<std::pair<std::string, bool>, OpCount> sums;
  for (const OpRow& row : rows) sums[{row.op, row.backward}] += row.count;
  std::vector<OpRow> result;
  for (const auto& [key, count] : sums) result.push_back({"", key.first, key.second, count});
  std::stable_sort(result.begin(), result.end(), [](const OpRow& a, const OpRow& b) {
    return std::pair(a.count.flops, a.count.bytes) > std::pair(b.count.flops, b.count.bytes);
  });
  return result;
}

std::vector<OpRow> OpReport::by_module(int depth) const {
  const auto order = [](const std::string& a, const std::string& b) {  // a parent before its children: '.' sorts first
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](char x, char y) { return (x == '.' ? 0 : x) < (y == '.' ? 0 : y); });
  };
  std::map<std::string, OpCount, decltype(order)> sums(order);
  sums[""];
  for (const OpRow& row : rows) {
    for (std::string path = row.module;; path.resize(path.rfind('.') == std::string::npos ? 0 : path.rfind('.'))) {
      if (depth < 0 || levels(path) <= depth) sums[path] += row.count;
      if (path.empty()) break;
    }
  }
  std::vector<OpRow> result;
  for (const auto& [path, count] : sums) result.push_back({path, "", false, count});
  return result;
}

std::string OpReport::to_text(int depth) const {
  const int64_t flops = total().flops;
  std::string text = heading("operator (b: backward)");
  for (const OpRow& row : by_operator()) text += count_line(row.op + (row.backward ? " (b)" : ""), row.count, flops);
  text += "\n" + heading("module, with what it contains");
  for (const OpRow& row : by_module(depth)) {
    const std::string indent(2 * static_cast<size_t>(levels(row.module)), ' ');
    text += count_line(row.module.empty() ? "(model)" : indent + row.module.substr(row.module.rfind('.') + 1),
                       row.count, flops);
  }
  return text;
}

std::string OpReport::to_json() const {
  nlohmann::json report = {{"total", to_object(total())}, {"rows", nlohmann::json::array()}};
  for (const OpRow& row : rows) {
    nlohmann::json object = to_object(row.count);
    object.update({{"module", row.module}, {"op", row.op}, {"backward", row.backward}});
    report["rows"].push_back(std::move(object));
  }
  return json_text(report, 2);
}

}  // namespace bellows::inspect
