#include <algorithm>
#include <cmath>
#include <limits>

#include "bellows/core/stats.h"
#include "bellows/ladder/estimate.h"

namespace bellows::train {

namespace {

/// A measure, and how often it applies: accumulation over 8 steps counts as three doublings.
struct Part {
  std::pair<char, int> key;
  double times = 1;
};

std::vector<Part> parts_of(const MemoryOptions& measures) {
  std::vector<Part> parts;
  const auto add = [&parts](char kind, int value) {
    if (value > 0) parts.push_back({{kind, value}});
  };
  add('p', static_cast<int>(measures.precision));
  add('s', static_cast<int>(measures.state));
  add('a', static_cast<int>(measures.saved));
  if (measures.accumulate > 1) parts.push_back({{'k', 0}, std::log2(static_cast<double>(measures.accumulate))});
  return parts;
}

}  // namespace

double StepTimes::estimate_ms(const PlanCandidate& candidate) const {
  if (base_ms_ == 0) return std::numeric_limits<double>::quiet_NaN();
  double correction = 0;
  for (const Part& part : parts_of(candidate.measures)) {
    const auto known = corrections_.find(part.key);
    if (known != corrections_.end()) correction += part.times * known->second;
  }
  return base_ms_ * candidate.time_factor * std::exp(correction);
}

void StepTimes::learn(const PlanCandidate& candidate, double step_ms) {
  if (base_ms_ == 0) {
    base_ms_ = step_ms / candidate.time_factor;
    return;
  }
  double unknown = 0;
  for (const Part& part : parts_of(candidate.measures)) unknown += corrections_.contains(part.key) ? 0 : part.times;
  if (unknown == 0) return;
  const double share = std::log(step_ms / estimate_ms(candidate)) / unknown;
  for (const Part& part : parts_of(candidate.measures)) corrections_.try_emplace(part.key, share);
}

bool EvaluationPeaks::above(size_t candidate, int64_t bytes, double scale) const {
  const MemoryOptions& own = candidates_[candidate].measures;
  return std::ranges::any_of(too_high_, [&](const auto& known) {
    const PlanCandidate& other = candidates_[known.first];
    MemoryOptions like_it = other.measures;
    if (own.precision != like_it.precision || (own.accumulate > like_it.accumulate && parts_help())) return false;
    like_it.state = own.state;
    const auto twin = std::ranges::find(candidates_, like_it, &PlanCandidate::measures);
    if (twin == candidates_.end()) return false;
    const double saved = scale * static_cast<double>(other.predicted_bytes - twin->predicted_bytes);
    return static_cast<double>(known.second) - saved > static_cast<double>(bytes);
  });
}

/// True until two evaluations show otherwise.
bool EvaluationPeaks::parts_help() const {
  return std::ranges::none_of(too_high_, [this](const auto& few) {
    return std::ranges::any_of(too_high_, [&](const auto& many) {
      const MemoryOptions& alike = candidates_[many.first].measures;
      const MemoryOptions& fewer = candidates_[few.first].measures;
      if (alike.accumulate <= fewer.accumulate || alike.precision != fewer.precision || alike.state != fewer.state)
        return false;
      return static_cast<double>(many.second) > 0.95 * static_cast<double>(few.second);
    });
  });
}

bool adds_to(const MemoryOptions& measures, const MemoryOptions& other) {
  const auto more = [](auto mine, auto theirs, auto nothing) { return theirs == nothing || mine == theirs; };
  return more(measures.precision, other.precision, MemoryOptions::Precision::as_it_is) &&
         more(measures.state, other.state, MemoryOptions::State::as_it_is) &&
         more(measures.saved, other.saved, MemoryOptions::Saved::as_it_is) && measures.accumulate >= other.accumulate &&
         !(measures == other);
}

size_t fastest_with_fewest_changes(const std::vector<std::vector<double>>& seconds,
                                   const std::vector<size_t>& changes) {
  size_t fastest = 0;
  for (size_t i = 1; i < changes.size(); ++i) {
    if (median(seconds[i]) < median(seconds[fastest])) fastest = i;
  }
  size_t best = fastest;
  for (size_t i = 0; i < changes.size(); ++i) {
    const bool alike = i == fastest || !paired_ratio(seconds[i], seconds[fastest]).excludes_one();
    if (alike && changes[i] < changes[best]) best = i;
  }
  return best;
}

}  // namespace bellows::train
