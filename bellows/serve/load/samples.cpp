#include "bellows/serve/load/samples.h"

#include <algorithm>
#include <cmath>

namespace bellows::serve {

namespace {

constexpr double ns = 1e-9;
constexpr size_t compared_windows = 3;

}  // namespace

int64_t percentile(std::span<const int64_t> sorted, double q) {
  if (sorted.empty()) return 0;
  // The small number keeps products such as 0.95 * 20 = 19.000000000000004 at their rank.
  const double rank = std::ceil(q * static_cast<double>(sorted.size()) - 1e-9);
  const auto at = static_cast<size_t>(std::clamp<double>(rank, 1, static_cast<double>(sorted.size())));
  return sorted[at - 1];
}

LatencySummary summarize(std::vector<int64_t> latencies_ns) {
  LatencySummary result{.count = latencies_ns.size()};
  if (latencies_ns.empty()) return result;
  std::ranges::sort(latencies_ns);
  double sum = 0;
  for (const int64_t value : latencies_ns) sum += static_cast<double>(value);
  const auto at = [&](double q) { return ns * static_cast<double>(percentile(latencies_ns, q)); };
  result.mean_s = ns * sum / static_cast<double>(latencies_ns.size());
  result.p50_s = at(0.5);
  result.p90_s = at(0.9);
  result.p95_s = at(0.95);
  result.p99_s = at(0.99);
  result.max_s = ns * static_cast<double>(latencies_ns.back());
  return result;
}

WindowRate window_rate(std::span<const LoadSample> samples, int64_t begin, int64_t end) {
  int64_t count = 0;
  double sum = 0;
  for (const LoadSample& sample : samples) {
    if (sample.end != LoadSample::End::ok || sample.done < begin || sample.done >= end) continue;
    ++count;
    sum += static_cast<double>(sample.done - sample.intended);
  }
  if (count == 0 || end <= begin) return {};
  return {.rate = static_cast<double>(count) / (ns * static_cast<double>(end - begin)),
          .mean_s = ns * sum / static_cast<double>(count)};
}

bool is_stable(std::span<const WindowRate> windows, double tolerance) {
  if (windows.size() < compared_windows) return false;
  const auto last = windows.last(compared_windows);
  const auto stable = [&](double WindowRate::*member) {
    double mean = 0;
    for (const WindowRate& window : last) mean += window.*member / compared_windows;
    return std::ranges::all_of(last, [&](const WindowRate& window) {
      return window.*member > 0 && std::abs(window.*member - mean) <= tolerance * mean;
    });
  };
  return stable(&WindowRate::rate) && stable(&WindowRate::mean_s);
}

LevelResult summarize_level(std::span<const LoadSample> samples, int64_t begin, int64_t end, bool by_intention) {
  using End = LoadSample::End;
  LevelResult result{.seconds = ns * static_cast<double>(end - begin)};
  std::vector<int64_t> latencies;
  for (const LoadSample& sample : samples) {
    const bool done_inside = sample.done >= begin && sample.done < end;
    const bool intended_inside = sample.intended >= begin && sample.intended < end;
    const bool chosen = by_intention ? intended_inside : done_inside;
    if (sample.end == End::ok && done_inside) ++result.requests;
    if (sample.end != End::ok && chosen) ++result.failed;
    if (sample.end != End::failed && chosen) latencies.push_back(sample.done - sample.intended);
  }
  result.latency = summarize(std::move(latencies));
  result.requests_per_s = result.seconds > 0 ? static_cast<double>(result.requests) / result.seconds : 0;
  return result;
}

}  // namespace bellows::serve
