#include "bellows/train/sketch.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "bellows/train/plan_measures.h"

namespace bellows::train {

namespace {

using models::Extent;

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
void narrow(Sketch& sketch) {
  Extent& small = sketch.small;
  const auto twice = [&] {
    Extent other = small;
    other.heads *= 2;
    other.inner *= 2;
    return other.parameters();
  };
  if (small.parameters() <= small_enough) return;
  do {
    small.heads = std::max<int64_t>(1, small.heads / 2);
    small.inner = std::max<int64_t>(16, sketch.full.inner * small.heads / sketch.full.heads);
  } while (small.heads > 1 && twice() > small_enough);
}

}  // namespace

std::optional<Sketch> sketch_of(const models::ModelEntry& entry) {
  if (!entry.extent) return {};
  Sketch sketch{.full = entry.extent(entry.input_shape[0])};
  const Extent& full = sketch.full;
  TORCH_CHECK_VALUE(full.parameters() <= beyond_all, "plan_memory: ", entry.name,
                    ": expected a model of at most 10^15 parameters, got ", words_for(full), ".");
  Extent& small = sketch.small = full;
  small.layers = std::min(full.layers, least_layers);
  if (full.words > few_words) small.words = few_words;
  if (full.positions > 2 * few_positions) small.positions = few_positions;
  narrow(sketch);
  TORCH_CHECK_VALUE(small.parameters() <= too_large, "plan_memory: ", entry.name,
                    ": expected a model whose small likeness has at most 2^28 parameters, got ", words_for(full),
                    ", of which the smallest has ", words_for(small), ". More heads make it smaller.");
  const auto vary = [&](int64_t Extent::*what, int64_t more) {
    if (small.*what == full.*what) return;
    sketch.others.push_back({what, small});
    sketch.others.back().extent.*what = std::min(more, full.*what);
  };
  vary(&Extent::heads, 2 * small.heads);
  vary(&Extent::inner, 2 * small.inner);
  vary(&Extent::words, small.words * 2);
  // How many scores a loss has at a time depends on the words, however few they are.
  const bool scores_words = entry.output == models::OutputKind::token && small.words == full.words && full.words > 1;
  if (scores_words) sketch.others.push_back({&Extent::words, small});
  if (scores_words) sketch.others.back().extent.words /= 2;
  vary(&Extent::positions, small.positions * 3 / 2);
  return sketch;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

std::vector<Shape> full_shapes(const Sketch& sketch, const NamedShapes& small, const std::vector<NamedShapes>& others) {
  std::vector<Shape> result;
  result.reserve(small.size());
  for (const auto i : c10::irange(small.size())) {
    Shape shape{.sizes = small[i].second};
    for (const auto k : c10::irange(others.size())) {
      const int64_t Extent::*what = sketch.others[k].what;
      for (const auto d : c10::irange(shape.sizes.size())) {
        const bool grows = others[k][i].second[d] != small[i].second[d];
        if (grows) shape.sizes[d] = shape.sizes[d] / (sketch.small.*what) * (sketch.full.*what);
      }
    }
    const bool repeated = sketch.full.layers > sketch.small.layers && repeated_block(small[i].first).ends_with(".1");
    if (repeated) shape.count = sketch.full.layers - 2;
    result.push_back(std::move(shape));
  }
  return result;
}

}  // namespace bellows::train
