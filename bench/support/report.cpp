#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bellows/system/file.h"
#include "bench/support/bench.h"
#include "bench/support/quick.h"

namespace bellows::bench {

namespace {

using Json = nlohmann::ordered_json;

std::atomic<bool> some_row_unequal = false;

std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) >= 1e5 || std::abs(value) < 1e-3 ? "%.3e" : "%.4g", value);
  return text;
}

void print_side(const std::string& name, double value, const Row& row, const Side* side) {
  std::printf("  %-34.34s %9s %-4s", name.c_str(), figure(value).c_str(), row.unit.c_str());
  if (side) std::printf(" +-%2.0f %%", 100 * side->spread());
  if (name == row.best_peer) {
    std::printf("  x%.2f", row.ratio_to_best_peer);
    if (std::isfinite(row.interval.low)) std::printf(" [%.2f, %.2f]", row.interval.low, row.interval.high);
  }
  std::printf("\n");
}

const Side* side_named(const Row& row, size_t index) {
  return index < row.sides.size() ? &row.sides[index] : nullptr;
}

void print_row(const Row& row) {
  std::printf("%s: %s%s\n", row.work.c_str(), row.metric.c_str(), row.equal ? "" : "  [DIFFERENT RESULTS]");
  const Side* ours = side_named(row, 0);
  print_side(ours ? ours->name : "ours", row.ours, row, ours);
  for (size_t i = 0; i < row.peers.size(); ++i)
    print_side(row.peers[i].first, row.peers[i].second, row, side_named(row, i + 1));
  if (std::isfinite(row.limit)) print_side("limit", row.limit, row, nullptr);
  if (!row.note.empty()) std::printf("  %s\n", row.note.c_str());
  std::fflush(stdout);
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json row_json(const Row& row) {
  Json peers = Json::object();
  for (const auto& [name, value] : row.peers) peers[name] = number(value);
  return {{"work", row.work},
          {"metric", row.metric},
          {"unit", row.unit},
          {"ours", row.ours},
          {"peers", std::move(peers)},
          {"limit", number(row.limit)},
          {"ratio_to_best_peer", number(row.ratio_to_best_peer)},
          {"equal", row.equal}};
}

Json details_json(const Row& row) {
  Json windows = Json::object();
  for (const Side& side : row.sides) windows[side.name] = side.windows;
  return {{"work", row.work},
          {"metric", row.metric},
          {"ratio_interval", {number(row.interval.low), number(row.interval.high)}},
          {"best_peer", row.best_peer},
          {"note", row.note},
          {"seconds_per_unit", std::move(windows)}};
}

}  // namespace

bool rows_so_far_equal() {
  return !some_row_unequal;
}

Report::Report(std::string name, Options options, Deadline deadline)
    : name_(std::move(name)), options_(std::move(options)), deadline_(std::move(deadline)) {
  last_left_s_ = deadline_.left_s();
  std::printf("%s\n", name_.c_str());
  for (const auto& [key, value] : machine_info()) {
    if (key != "cpu_flags") std::printf("  %s: %s\n", key.c_str(), value.c_str());
  }
  if (options_.peer_python.empty()) std::printf("  no --peer-python, so Python peers are skipped\n");
  std::fflush(stdout);
}

void Report::add(Row row) {
  print_row(row);
  if (!row.equal) some_row_unequal = true;
  rows_.push_back(std::move(row));
  write_file();
  const double left = deadline_.left_s();
  if (std::isfinite(left)) longest_row_s_ = std::max(longest_row_s_, last_left_s_ - left);
  last_left_s_ = left;
}

bool Report::has_time_for(const std::string& row) {
  if (rows_.empty() || deadline_.left_s() > longest_row_s_) return true;
  left_out_.push_back(row);
  return false;
}

int Report::finish() const {
  if (!left_out_.empty()) std::printf("skipped to end within a minute (run without --quick):\n");
  for (const std::string& row : left_out_) std::printf("  %s\n", row.c_str());
  return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.equal; }) ? 0 : 1;
}

void Report::write_file() const {
  if (options_.json.empty()) return;
  Json rows = Json::array(), details = Json::array(), machine = Json::object();
  for (const Row& row : rows_) {
    rows.push_back(row_json(row));
    details.push_back(details_json(row));
  }
  for (const auto& [key, value] : machine_info()) machine[key] = value;
  const Json file = {
      {"bench", name_}, {"quick", options_.quick}, {"machine", machine}, {"rows", rows}, {"details", details}};
  write_text_file(options_.json, file.dump(1) + "\n");
}

}  // namespace bellows::bench
