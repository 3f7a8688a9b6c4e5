#include "bellows/models/model_skeleton.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

namespace bellows::models {

namespace {

constexpr int64_t least_layers = 3;     // the first, the last, and what is between
constexpr int64_t few_positions = 128;  // rehearsed texts have 64 tokens at most
constexpr int64_t few_words = 4096;     // so many at a time nn::linear_cross_entropy() takes in bf16
constexpr double small_enough = 30e6, too_large = 1 << 28, beyond_all = 1e15;

std::string words_for(const Extent& extent) {
  return c10::str(extent.width_name, " = ", extent.width(), " in heads of ", extent.head_width, ", ", extent.layers,
                  " layers, ", extent.inner, " between their linear layers, ", extent.words, " words, ",
                  extent.positions, " positions");
}

/// Heads, and the inner width with them, halved until three layers are small enough; twice as much of each is tried, too.
void narrow(ModelSkeleton& skeleton) {
  Extent& small = skeleton.small;
  const auto twice = [&] {
    Extent other = small;
    other.heads *= 2;
    other.inner *= 2;
    return other.parameters();
  };
  if (small.parameters() <= small_enough) return;
  do {
    small.heads = std::max<int64_t>(1, small.heads / 2);
    small.inner = std::max<int64_t>(16, skeleton.full.inner * small.heads / skeleton.full.heads);
  } while (small.heads > 1 && twice() > small_enough);
}

}  // namespace

std::optional<ModelSkeleton> model_skeleton(const ModelEntry& entry) {
  if (!entry.extent) return {};
  ModelSkeleton skeleton{.full = entry.extent(entry.input_shape[0])};
  const Extent& full = skeleton.full;
  TORCH_CHECK_VALUE(full.parameters() <= beyond_all, "plan_memory: ", entry.name,
                    ": expected a model of at most 10^15 parameters, got ", words_for(full), ".");
  Extent& small = skeleton.small = full;
  small.layers = std::min(full.layers, least_layers);
  if (full.words > few_words) small.words = few_words;
  if (full.positions > 2 * few_positions) small.positions = few_positions;
  narrow(skeleton);
  TORCH_CHECK_VALUE(small.parameters() <= too_large, "plan_memory: ", entry.name,
                    ": expected a model whose small likeness has at most 2^28 parameters, got ", words_for(full),
                    ", of which the smallest has ", words_for(small), ". More heads make it smaller.");
  const auto vary = [&](int64_t Extent::*what, int64_t more) {
    if (small.*what == full.*what) return;
    skeleton.others.push_back({what, small});
    skeleton.others.back().extent.*what = std::min(more, full.*what);
  };
  vary(&Extent::heads, 2 * small.heads);
  vary(&Extent::inner, 2 * small.inner);
  vary(&Extent::words, small.words * 2);
  // How many scores a loss has at a time depends on the words, however few they are.
  const bool scores_words = entry.output == OutputKind::token && small.words == full.words && full.words > 1;
  if (scores_words) skeleton.others.push_back({&Extent::words, small});
  if (scores_words) skeleton.others.back().extent.words /= 2;
  vary(&Extent::positions, small.positions * 3 / 2);
  return skeleton;
}

}  // namespace bellows::models
