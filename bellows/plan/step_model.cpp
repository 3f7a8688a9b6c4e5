#include "bellows/plan/step_model.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "bellows/nn/cross_entropy.h"
#include "bellows/plan/depth_extrapolation.h"

namespace bellows::train {

namespace {

using inspect::TensorLife;
using inspect::TensorTimeline;
using models::ModelSize;

/// The variables of a law: batch, length, heads, inner width, words, positions.
constexpr size_t quantities = 6, of_size = 2;
using Quantities = std::array<double, quantities>;
using Powers = std::array<int, quantities>;

Quantities quantities_of(const StepSize& size, const ModelSize& model_size) {
  return {static_cast<double>(size.batch),       static_cast<double>(size.length),
          static_cast<double>(model_size.heads), static_cast<double>(model_size.inner),
          static_cast<double>(model_size.words), static_cast<double>(model_size.positions)};
}

double value_of(const Powers& powers, const Quantities& quantity) {
  double product = 1;
  for (const auto i : c10::irange(quantities)) {
    for (int k = 0; k < powers[i]; ++k) product *= quantity[i];
  }
  return product;
}

/// Powers of batch and length in the order of SizeLaw's factors.
constexpr std::array<std::array<int, of_size>, 6> size_powers = {{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}};
constexpr const char* term_names[size_powers.size()] = {"", " B", " T", " B·T", " T²", " B·T²"};

/// Possible dependences of a tensor's size on the model size.
constexpr std::array<std::array<int, quantities - of_size>, 9> model_size_powers = {{{0, 0, 0, 0},
                                                                                     {1, 0, 0, 0},
                                                                                     {0, 1, 0, 0},
                                                                                     {0, 0, 1, 0},
                                                                                     {0, 0, 0, 1},
                                                                                     {2, 0, 0, 0},
                                                                                     {1, 1, 0, 0},
                                                                                     {1, 0, 1, 0},
                                                                                     {1, 0, 0, 1}}};

constexpr Powers per_token_and_word = {1, 1, 0, 0, 1, 0};

/// Upper limit for one tensor: beyond any machine, but small enough to be summed.
constexpr double most_bytes = 1e15;

/// The maximum that the heap may have added to a block.
double rounding(double bytes) {
  return bytes < (64 << 10) ? 160 : 4352;
}

/// Bytes as a sum of terms, each with a factor and powers.
struct Law {
  std::vector<std::pair<Powers, double>> terms;
  bool fits = true;

  double bytes(const Quantities& quantity) const {
    double sum = 0;
    for (const auto& [powers, factor] : terms) sum += factor * value_of(powers, quantity);
    return sum;
  }
  /// Inserts the requested model size. Params: few_scores – see StepModel
  SizeLaw of_model_size(const ModelSize& model_size, bool few_scores = false) const {
    const Quantities quantity = quantities_of({1, 1}, model_size);
    SizeLaw law{.fits = fits};
    for (const auto& [powers, factor] : terms) {
      const auto place = std::ranges::find(size_powers, std::array{powers[0], powers[1]}) - size_powers.begin();
      law.factors[static_cast<size_t>(place)] += factor * value_of(powers, quantity);
      if (few_scores && powers == per_token_and_word)
        law.most =
            factor * quantity[4] *
            static_cast<double>(nn::automatic_chunk(model_size.words, std::max<int64_t>(1, std::llround(factor))));
    }
    return law;
  }
};

/// The observations of one tensor.
class Seen {
 public:
  Seen(std::vector<Quantities> where, std::vector<double> bytes) : where_(std::move(where)), bytes_(std::move(bytes)) {}

  /// Returns the simplest law within the heap's rounding. If there is none, bytes are assumed to grow with tokens or
  /// pixels, and with heads.
  Law fit() const {
    const std::vector<Powers> terms = usable();
    Law best;
    double least = std::numeric_limits<double>::infinity();
    const auto consider = [&](const std::optional<Law>& law) {
      const double wrong = law ? misfit(*law) : least;
      if (wrong >= least) return;
      least = wrong;
      best = *law;
    };
    for (const Powers& term : terms) consider(one_term(term));
    if (least <= 1) return best;
    for (const Powers& term : terms) consider(two_terms({}, term));
    if (least <= 1) return best;
    for (const Powers& a : terms) {
      for (const Powers& b : terms) consider(a < b ? two_terms(a, b) : std::nullopt);
    }
    return least <= 1 ? best : guessed();
  }
  Law guessed() const {
    const Powers powers = {1, 1, varies(2) ? 1 : 0, 0, 0, 0};
    return {{{powers, bytes_.back() / value_of(powers, where_.back())}}, false};
  }

 private:
  bool varies(size_t quantity) const {
    return std::ranges::any_of(where_, [&](const Quantities& q) { return q[quantity] != where_[0][quantity]; });
  }

  /// The terms that can be determined: only variables that differ between the steps. Products of two model sizes are
  /// weights, which do not depend on the batch.
  std::vector<Powers> usable() const {
    std::vector<Powers> result;
    for (const auto& [batch, length] : size_powers) {
      for (const auto& [heads, inner, words, positions] : model_size_powers) {
        const Powers powers = {batch, length, heads, inner, words, positions};
        bool known = batch + length == 0 || heads + inner + words + positions < 2;
        if (length > 0 && !varies(1)) known = false;
        for (size_t i = of_size; i < quantities; ++i) known = known && (powers[i] == 0 || varies(i));
        if (known) result.push_back(powers);
      }
    }
    return result;
  }

  /// The largest error relative to the heap's rounding; above 1, the law is wrong.
  double misfit(const Law& law) const {
    double worst = 0;
    for (const auto i : c10::irange(bytes_.size()))
      worst = std::max(worst, std::abs(bytes_[i] - law.bytes(where_[i])) / rounding(bytes_[i]));
    return worst;
  }

  Law one_term(const Powers& powers) const {
    double factor = std::numeric_limits<double>::infinity();
    for (const auto i : c10::irange(bytes_.size())) factor = std::min(factor, bytes_[i] / value_of(powers, where_[i]));
    return {{{powers, factor}}};
  }

  /// Fits by least squares.
  std::optional<Law> two_terms(const Powers& first, const Powers& second) const {
    double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
    for (const auto i : c10::irange(bytes_.size())) {
      const double a = value_of(first, where_[i]), b = value_of(second, where_[i]);
      aa += a * a;
      ab += a * b;
      bb += b * b;
      ay += a * bytes_[i];
      by += b * bytes_[i];
    }
    const double determinant = aa * bb - ab * ab;
    if (determinant <= 1e-9 * aa * bb) return {};
    const double x = (ay * bb - by * ab) / determinant, y = (by * aa - ay * ab) / determinant;
    if (x < 0 || y < 0) return {};
    return Law{{{first, x}, {second, y}}};
  }

  std::vector<Quantities> where_;
  std::vector<double> bytes_;
};

/// The origin of a tensor within the step.
std::string origin_of(const TensorLife& tensor) {
  const std::string kind(inspect::to_string(tensor.kind));
  if (tensor.born < 0) return "before|" + kind + "|" + tensor.name;
  return tensor.phase + "|" + tensor.node + "|" + tensor.op + "|" + tensor.module + "|" + kind;
}

/// The index of the matching tensor in `step` for each tensor of the pattern, or -1.
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

/// Returns whether a temporary tensor is as large as the weight of its module. It is then a copy in another layout, which
/// some kernels make for some sizes of the batch only, and its size does not depend on the batch.
bool copies_weight(const TensorTimeline& step, const TensorLife& tensor) {
  if (tensor.kind != inspect::TensorKind::temporary) return false;
  return std::ranges::any_of(step.tensors, [&](const TensorLife& other) {
    return other.born < 0 && other.name == tensor.module + ".weight" &&
           std::abs(static_cast<double>(other.bytes - tensor.bytes)) <= rounding(static_cast<double>(other.bytes));
  });
}

/// Fits the law of one tensor of the pattern, which is the last step.
/// Params: likes – matches in the other steps
SizeLaw law_of(const std::vector<RecordedStep>& steps, const std::vector<std::vector<int64_t>>& likes, size_t index,
               const ModelSize& wanted, bool few_scores) {
  std::vector<Quantities> where;
  std::vector<double> bytes;
  const auto add = [&](const RecordedStep& step, size_t tensor) {
    where.push_back(quantities_of(step.size, step.model_size));
    bytes.push_back(static_cast<double>(step.timeline.tensors[tensor].bytes));
  };
  for (const auto k : c10::irange(likes.size())) {
    if (likes[k][index] >= 0) add(steps[k], static_cast<size_t>(likes[k][index]));
  }
  const bool everywhere = where.size() == likes.size();
  add(steps.back(), index);
  const Law constant{{{Powers{}, bytes.back()}}};
  const Seen seen(std::move(where), std::move(bytes));
  const Law law = everywhere ? seen.fit() : seen.guessed();
  const bool copy = !law.fits && copies_weight(steps.back().timeline, steps.back().timeline.tensors[index]);
  return (copy ? constant : law).of_model_size(wanted, few_scores);
}

}  // namespace

int64_t SizeLaw::bytes(const StepSize& size) const {
  const auto b = static_cast<double>(size.batch), t = static_cast<double>(size.length);
  double sum = 0;
  for (const auto k : c10::irange(factors.size()))
    sum += factors[k] * (size_powers[k][0] > 0 ? b : 1) * std::pow(t, size_powers[k][1]);
  return std::llround(std::min({sum, most, most_bytes}));
}

std::string SizeLaw::to_string() const {
  std::string text;
  for (const auto k : c10::irange(factors.size())) {
    if (factors[k] != 0) text += c10::str(text.empty() ? "" : " + ", std::llround(factors[k]), term_names[k]);
  }
  return text.empty() ? "0" : text;
}

SizeLaw fit_size(const std::vector<StepSize>& sizes, const std::vector<int64_t>& bytes) {
  TORCH_CHECK_VALUE(sizes.size() == bytes.size() && sizes.size() >= 2,
                    "fit_size: expected the bytes at two or more sizes, got ", bytes.size(), " numbers for ",
                    sizes.size(), " sizes.");
  std::vector<Quantities> where;
  where.reserve(sizes.size());
  for (const StepSize& size : sizes) where.push_back(quantities_of(size, {}));
  return Seen(std::move(where), {bytes.begin(), bytes.end()}).fit().of_model_size({});
}

StepModel::StepModel(std::vector<RecordedStep> steps, const ModelSize& wanted, bool few_scores) {
  TORCH_CHECK_VALUE(steps.size() >= 2, "StepModel: expected at least two recorded steps, got ", steps.size(), ".");
  pattern_ = steps.back().timeline;
  std::vector<std::vector<int64_t>> likes;
  for (const auto i : c10::irange(steps.size() - 1)) likes.push_back(matched(pattern_, steps[i].timeline));
  laws_.reserve(pattern_.tensors.size());
  for (const auto i : c10::irange(pattern_.tensors.size()))
    laws_.push_back(law_of(steps, likes, i, wanted, few_scores));
  if (steps.back().model_size.layers == wanted.layers) return;
  ExtrapolatedStep deep = extrapolate_depth(pattern_, wanted.layers);
  std::vector<SizeLaw> laws;
  laws.reserve(deep.like.size());
  for (const size_t i : deep.like) laws.push_back(laws_[i]);
  laws_ = std::move(laws);
  pattern_ = std::move(deep.step);
}

TensorTimeline StepModel::at(const StepSize& size) const {
  TensorTimeline result = pattern_;
  for (const auto i : c10::irange(laws_.size())) result.tensors[i].bytes = laws_[i].bytes(size);
  return result;
}

}  // namespace bellows::train
