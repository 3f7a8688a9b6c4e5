#include "bellows/train/step_model.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

namespace bellows::train {

namespace {

using inspect::TensorLife;
using inspect::TensorTimeline;

constexpr size_t terms = 6, product_term = 3;
constexpr const char* term_names[terms] = {"", " B", " T", " B·T", " T²", " B·T²"};

std::array<double, terms> values_of(const StepSize& size) {
  const auto b = static_cast<double>(size.batch), t = static_cast<double>(size.length);
  return {1, b, t, b * t, t * t, b * t * t};
}

/// What the heap may have added to a block.
double rounding(double bytes) {
  return bytes < (64 << 10) ? 160 : 4352;
}

/// One tensor in the steps that were seen.
struct Seen {
  std::vector<std::array<double, terms>> values;
  std::vector<double> bytes;

  /// The largest error over what rounding explains; above 1 the law is wrong.
  double misfit(const SizeLaw& law) const {
    double worst = 0;
    for (const auto i : c10::irange(bytes.size())) {
      double sum = 0;
      for (const auto k : c10::irange(terms)) sum += law.factors[k] * values[i][k];
      worst = std::max(worst, std::abs(bytes[i] - sum) / rounding(bytes[i]));
    }
    return worst;
  }
};

SizeLaw one_term(const Seen& seen, size_t term) {
  double factor = std::numeric_limits<double>::infinity();
  for (const auto i : c10::irange(seen.bytes.size())) factor = std::min(factor, seen.bytes[i] / seen.values[i][term]);
  SizeLaw law;
  law.factors[term] = factor;
  return law;
}

/// Least squares of two terms.
std::optional<SizeLaw> two_terms(const Seen& seen, size_t first, size_t second) {
  double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
  for (const auto i : c10::irange(seen.bytes.size())) {
    const double a = seen.values[i][first], b = seen.values[i][second];
    aa += a * a;
    ab += a * b;
    bb += b * b;
    ay += a * seen.bytes[i];
    by += b * seen.bytes[i];
  }
  const double determinant = aa * bb - ab * ab;
  if (determinant <= 1e-9 * aa * bb) return {};
  SizeLaw law;
  law.factors[first] = (ay * bb - by * ab) / determinant;
  law.factors[second] = (by * aa - ay * ab) / determinant;
  if (law.factors[first] < 0 || law.factors[second] < 0) return {};
  return law;
}

/// Where, in the whole, a tensor comes from.
std::string origin_of(const TensorLife& tensor) {
  const std::string kind(inspect::to_string(tensor.kind));
  if (tensor.born < 0) return "before|" + kind + "|" + tensor.name;
  return tensor.phase + "|" + tensor.node + "|" + tensor.op + "|" + tensor.module + "|" + kind;
}

/// For each tensor of the pattern the one that is its like in `step`, or -1.
std::vector<int64_t> matched(const TensorTimeline& pattern, const TensorTimeline& step) {
  std::unordered_map<std::string, std::vector<int64_t>> by_origin;
  for (const auto i : c10::irange(step.tensors.size()))
    by_origin[origin_of(step.tensors[i])].push_back(static_cast<int64_t>(i));
  std::unordered_map<std::string, size_t> taken;
  std::vector<int64_t> result;
  result.reserve(pattern.tensors.size());
  for (const TensorLife& tensor : pattern.tensors) {
    const std::string origin = origin_of(tensor);
    const auto likes = by_origin.find(origin);
    const size_t n = taken[origin]++;
    result.push_back(likes != by_origin.end() && n < likes->second.size() ? likes->second[n] : -1);
  }
  return result;
}

/// The bytes grow as the samples' tokens, or pixels, do.
SizeLaw guessed(const StepSize& size, int64_t bytes) {
  SizeLaw law{.fits = false};
  law.factors[product_term] = static_cast<double>(bytes) / values_of(size)[product_term];
  return law;
}

}  // namespace

int64_t SizeLaw::bytes(const StepSize& size) const {
  const auto values = values_of(size);
  double sum = 0;
  for (const auto k : c10::irange(terms)) sum += factors[k] * values[k];
  return std::llround(sum);
}

std::string SizeLaw::to_string() const {
  std::string text;
  for (const auto k : c10::irange(terms)) {
    if (factors[k] != 0) text += c10::str(text.empty() ? "" : " + ", std::llround(factors[k]), term_names[k]);
  }
  return text.empty() ? "0" : text;
}

SizeLaw fit_size(const std::vector<StepSize>& sizes, const std::vector<int64_t>& bytes) {
  TORCH_CHECK_VALUE(sizes.size() == bytes.size() && sizes.size() >= 2,
                    "fit_size: expected the bytes at two sizes or more, got ", bytes.size(), " at ", sizes.size(), ".");
  Seen seen;
  bool lengths_differ = false;
  for (const auto i : c10::irange(sizes.size())) {
    seen.values.push_back(values_of(sizes[i]));
    seen.bytes.push_back(static_cast<double>(bytes[i]));
    lengths_differ = lengths_differ || sizes[i].length != sizes[0].length;
  }
  const std::vector<size_t> usable = lengths_differ ? std::vector<size_t>{0, 1, 2, 3, 4, 5} : std::vector<size_t>{0, 1};
  SizeLaw best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const SizeLaw& law) {
    const double misfit = seen.misfit(law);
    if (misfit >= least) return;
    least = misfit;
    best = law;
  };
  for (const size_t term : usable) consider(one_term(seen, term));
  if (least <= 1) return best;
  for (const size_t term : usable) {
    if (const auto law = term > 0 ? two_terms(seen, 0, term) : std::nullopt) consider(*law);
  }
  if (least <= 1) return best;
  for (const size_t a : usable) {
    for (const size_t b : usable) {
      if (const auto law = a > 0 && b > a ? two_terms(seen, a, b) : std::nullopt) consider(*law);
    }
  }
  return least <= 1 ? best : guessed(sizes.back(), bytes.back());
}

StepModel::StepModel(std::vector<StepSize> sizes, std::vector<TensorTimeline> steps)
    : pattern_(std::move(steps.back())) {
  TORCH_CHECK_VALUE(sizes.size() == steps.size() && sizes.size() >= 2,
                    "StepModel: expected two recorded steps or more and the size of each, got ", steps.size(), " and ",
                    sizes.size(), ".");
  std::vector<std::vector<int64_t>> likes;
  for (const auto i : c10::irange(steps.size() - 1)) likes.push_back(matched(pattern_, steps[i]));
  laws_.reserve(pattern_.tensors.size());
  for (const auto i : c10::irange(pattern_.tensors.size())) {
    const int64_t own = pattern_.tensors[i].bytes;
    std::vector<StepSize> seen_sizes;
    std::vector<int64_t> seen_bytes;
    for (const auto k : c10::irange(likes.size())) {
      if (likes[k][i] < 0) continue;
      seen_sizes.push_back(sizes[k]);
      seen_bytes.push_back(steps[k].tensors[likes[k][i]].bytes);
    }
    const bool everywhere = seen_sizes.size() == likes.size();
    seen_sizes.push_back(sizes.back());
    seen_bytes.push_back(own);
    laws_.push_back(everywhere ? fit_size(seen_sizes, seen_bytes) : guessed(sizes.back(), own));
  }
}

TensorTimeline StepModel::at(const StepSize& size) const {
  TensorTimeline result = pattern_;
  for (const auto i : c10::irange(laws_.size())) result.tensors[i].bytes = laws_[i].bytes(size);
  return result;
}

}  // namespace bellows::train
