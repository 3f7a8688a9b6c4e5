#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "bellows/core/error.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

// So many units that a window of the first side takes about window_s; the trial also warms it up.
int64_t units_for(const Contestant& side, double window_s) {
  int64_t units = 1;
  for (;;) {
    const double seconds = side.run(units);
    if (seconds >= window_s / 4) {
      return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(units) * window_s / seconds));
    }
    units *= 8;
  }
}

}  // namespace

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Contestant timed_contestant(std::string name, std::function<void()> unit) {
  return {std::move(name), [unit = std::move(unit)](int64_t n) {
            return seconds_of([&] {
              for (int64_t i = 0; i < n; ++i) unit();
            });
          }};
}

double Side::spread() const {
  return (quantile(windows, 0.75) - quantile(windows, 0.25)) / 2 / std::abs(median(windows));
}

const Side& Comparison::best_peer() const {
  TORCH_CHECK_VALUE(sides.size() >= 2, "Comparison::best_peer: expected at least one other side besides ours.");
  return *std::min_element(sides.begin() + 1, sides.end(),
                           [](const Side& a, const Side& b) { return a.seconds() < b.seconds(); });
}

Comparison compare(const std::vector<Contestant>& contestants, const Plan& plan) {
  TORCH_CHECK_VALUE(!contestants.empty() && plan.windows >= 2,
                    "compare: expected at least 1 side and at least 2 windows, got ", contestants.size(), " sides and ",
                    plan.windows, " windows.");
  Comparison result;
  result.units = plan.units > 0 ? plan.units : units_for(contestants.front(), plan.window_s);
  for (const Contestant& side : contestants) result.sides.push_back({side.name, {}});
  const size_t count = contestants.size();
  const auto start = std::chrono::steady_clock::now();
  for (int window = -plan.warmup; window < plan.windows; ++window) {
    const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - start;
    if (window >= 2 && (so_far.count() > plan.budget_s || plan.deadline.over())) break;
    if (plan.before_round) plan.before_round();
    for (size_t turn = 0; turn < count; ++turn) {
      const size_t i = (turn + static_cast<size_t>(window + plan.warmup)) % count;
      const double seconds = contestants[i].run(result.units);
      if (window >= 0) result.sides[i].windows.push_back(seconds / static_cast<double>(result.units));
    }
  }
  return result;
}

namespace {

Row row_of(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal,
           const std::function<double(double)>& from_seconds) {
  Row row{.work = std::move(work), .metric = std::move(metric), .unit = std::move(unit), .peers = {}, .equal = equal};
  row.ours = from_seconds(comparison.ours().seconds());
  for (size_t i = 1; i < comparison.sides.size(); ++i) {
    row.peers.emplace_back(comparison.sides[i].name, from_seconds(comparison.sides[i].seconds()));
  }
  if (comparison.sides.size() > 1) {
    const Side& best = comparison.best_peer();
    row.best_peer = best.name;
    row.interval = comparison.speedup_over(best);
    row.ratio_to_best_peer = row.interval.ratio;
  }
  row.sides = comparison.sides;
  return row;
}

double units_a_second(const std::string& unit) {
  if (unit == "s") return 1;
  if (unit == "ms") return 1e3;
  if (unit == "us") return 1e6;
  TORCH_CHECK_VALUE(unit == "ns", "time_row: expected the unit s, ms, us or ns, got \"", unit, "\".");
  return 1e9;
}

/// What a hook adds, in seconds.
struct Added {
  DifferenceInterval time;
  Side windows;
};

Added added(const Side& with, const Side& without) {
  Added result{paired_difference(with.windows, without.windows), {with.name, {}}};
  for (size_t i = 0; i < with.windows.size(); ++i) {
    result.windows.windows.push_back(with.windows[i] - without.windows[i]);
  }
  return result;
}

RatioInterval ratio_of(const DifferenceInterval& peer, const DifferenceInterval& ours) {
  const auto divide = [](double a, double b) {
    return b > 0 ? std::max(a, 0.0) / b : std::numeric_limits<double>::infinity();
  };
  return {.ratio = divide(peer.difference, ours.difference),
          .low = divide(peer.low, ours.high),
          .high = divide(peer.high, ours.low)};
}

}  // namespace

Row time_row(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal) {
  const double scale = units_a_second(unit);
  return row_of(std::move(work), std::move(metric), std::move(unit), comparison, equal,
                [scale](double s) { return s * scale; });
}

Row rate_row(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal,
             double per_unit) {
  return row_of(std::move(work), std::move(metric), std::move(unit), comparison, equal,
                [per_unit](double s) { return per_unit / s; });
}

Row added_time_row(std::string work, std::string metric, const std::string& unit, const Comparison& all, bool equal) {
  TORCH_CHECK_VALUE(all.sides.size() == 2 || all.sides.size() > 3,
                    "added_time_row: expected our sides with and without the tool, and either no peers, or a peer "
                    "without a tool and at least one peer with a tool, got ",
                    all.sides.size(), " sides.");
  const double scale = units_a_second(unit);
  const Added ours = added(all.sides[0], all.sides[1]);
  Row row{.work = std::move(work), .metric = std::move(metric), .unit = unit, .peers = {}, .equal = equal};
  row.ours = ours.time.difference * scale;
  row.limit = all.sides[1].seconds() * scale;
  row.note = "limit: the work without the tool";
  row.sides = {ours.windows};
  for (size_t i = 3; i < all.sides.size(); ++i) {
    const Added theirs = added(all.sides[i], all.sides[2]);
    row.peers.emplace_back(theirs.windows.name, theirs.time.difference * scale);
    row.sides.push_back(theirs.windows);
    const RatioInterval ratio = ratio_of(theirs.time, ours.time);
    if (!row.best_peer.empty() && ratio.ratio >= row.interval.ratio) continue;
    row.best_peer = theirs.windows.name;
    row.interval = ratio;
    row.ratio_to_best_peer = ratio.ratio;
  }
  if (all.sides.size() > 2) row.note += c10::str("; in Python ", all.sides[2].seconds() * scale, " ", unit);
  if (ours.time.low <= 0) row.note += "; our added time is within the noise";
  return row;
}

}  // namespace bellows::bench
