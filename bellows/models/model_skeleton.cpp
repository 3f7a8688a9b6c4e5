#include "bellows/models/model_skeleton.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

namespace bellows::models {

namespace {

constexpr int64_t least_layers = 3;     // the first, the last, and one between them
constexpr int64_t few_positions = 128;  // texts of a dry run have at most 64 tokens
constexpr int64_t few_words = 4096;     // the number that nn::linear_cross_entropy() processes at a time in bf16
constexpr double small_enough = 30e6, too_large = 1 << 28, beyond_all = 1e15;

std::string words_for(const ModelSize& model_size) {
  return c10::str(model_size.width_name, " = ", model_size.width(), " in heads of ", model_size.head_width, ", ",
                  model_size.layers, " layers, ", model_size.inner, " features between their linear layers, ",
                  model_size.words, " tokens in the vocabulary, ", model_size.positions, " positions");
}

/// Halves the heads, and the inner width with them, until three layers are small enough. Models with twice as many
/// heads are also used in the dry run.
void narrow(ModelSkeleton& skeleton) {
  ModelSize& small = skeleton.small;
  const auto twice = [&] {
    ModelSize other = small;
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
  if (!entry.model_size) return {};
  ModelSkeleton skeleton{.full = entry.model_size(entry.input_shape[0])};
  const ModelSize& full = skeleton.full;
  TORCH_CHECK_VALUE(full.parameters() <= beyond_all, "plan_memory: ", entry.name,
                    ": expected a model of at most 10^15 parameters, got ", words_for(full), ".");
  ModelSize& small = skeleton.small = full;
  small.layers = std::min(full.layers, least_layers);
  if (full.words > few_words) small.words = few_words;
  if (full.positions > 2 * few_positions) small.positions = few_positions;
  narrow(skeleton);
  TORCH_CHECK_VALUE(small.parameters() <= too_large, "plan_memory: ", entry.name,
                    ": expected a model whose skeleton has at most 2^28 parameters, got ", words_for(full),
                    ", whose smallest skeleton has ", words_for(small),
                    ". Use more heads to make the skeleton smaller.");
  const auto vary = [&](int64_t ModelSize::*what, int64_t more) {
    if (small.*what == full.*what) return;
    skeleton.others.push_back({what, small});
    skeleton.others.back().model_size.*what = std::min(more, full.*what);
  };
  vary(&ModelSize::heads, 2 * small.heads);
  vary(&ModelSize::inner, 2 * small.inner);
  vary(&ModelSize::words, small.words * 2);
  // The number of logits that a loss holds at a time depends on the vocabulary, even if that is small.
  const bool scores_words = entry.output == OutputKind::token && small.words == full.words && full.words > 1;
  if (scores_words) skeleton.others.push_back({&ModelSize::words, small});
  if (scores_words) skeleton.others.back().model_size.words /= 2;
  vary(&ModelSize::positions, small.positions * 3 / 2);
  return skeleton;
}

Model make_small_model(const ModelEntry& entry) {
  const std::optional<ModelSkeleton> skeleton = model_skeleton(entry);
  if (skeleton) return entry.make_sized(skeleton->small, 10);
  return entry.make(10, entry.input_shape[0] > 0 ? entry.input_shape[0] : 3);
}

}  // namespace bellows::models
