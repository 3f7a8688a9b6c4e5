#include "bellows/plan/depth_extrapolation.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string>
#include <utility>

namespace bellows::train {

namespace {

using inspect::TensorLife;
using inspect::TensorTimeline;

constexpr int64_t recorded_layers = 3, middle = 1, last_recorded = recorded_layers - 1;
static_assert(last_recorded == 2 * middle, "one layer is repeated, between the first and the last");
constexpr int64_t nowhere = -1, elsewhere = -2;  // no layer: unknown, or another module

/// The common prefix of the layers' names: "encoder.layer.".
std::string list_of_layers(const TensorTimeline& step) {
  std::set<std::string> layers, lists;
  for (const TensorLife& tensor : step.tensors) {
    const std::string block = repeated_block(tensor.module);
    if (block.empty()) continue;
    layers.insert(block);
    lists.insert(block.substr(0, block.rfind('.') + 1));
  }
  TORCH_CHECK(lists.size() == 1 && layers.size() == recorded_layers, "extrapolate_depth: expected one list of ",
              recorded_layers, " layers in the step, found ", layers.size(), " layers in ", lists.size(), " lists.");
  return *lists.begin();
}

/// A pass through one layer, from its first event to that of the next layer.
struct Run {
  int64_t layer = 0, begin = 0, end = 0;
  std::string phase;
};

/// Three runs, through layers 0, 1, 2 or 2, 1, 0.
struct Sweep {
  std::array<Run, recorded_layers> by_layer;
  bool ascending = true;
  const Run& repeated() const { return by_layer[middle]; }
};

/// Maps events of the recorded step to the deeper model.
class Stretch {
 public:
  Stretch(const TensorTimeline& step, int64_t layers)
      : step_(step), list_(list_of_layers(step)), layers_(layers), run_of_(step.events, {nowhere, nowhere}) {
    time_.assign(step.events + 1, step.begin_us);
    time_.back() = step.end_us;
    for (const TensorLife& tensor : step.tensors) {
      if (tensor.born >= 0) time_[tensor.born] = tensor.born_us;
      if (tensor.died < step.events) time_[tensor.died] = tensor.died_us;
    }
    find_sweeps(runs());
    for (const auto s : c10::irange(sweeps_.size())) {
      for (const Run& run : sweeps_[s].by_layer) {
        for (int64_t e = run.begin; e < run.end; ++e) run_of_[e] = {static_cast<int64_t>(s), run.layer};
      }
    }
  }

  const std::string& list() const { return list_; }

  /// The layer that a tensor belongs to: where it was created, or the layer in its name.
  int64_t owner(const TensorLife& tensor) const {
    if (tensor.born >= 0) return run_of_[tensor.born].second;
    return std::max(nowhere, layer_of(tensor.name));
  }

  struct Place {
    int64_t event = 0;
    double us = 0;
  };
  /// Maps an event of a tensor. Params: owner – the tensor's layer; now – the layer of its copy
  Place place(int64_t event, int64_t owner, int64_t now) const {
    if (event < 0) return {event, step_.begin_us};
    const auto [sweep, layer] = event < step_.events ? run_of_[event] : std::pair(nowhere, nowhere);
    if (sweep == nowhere) return {event + inserted_before(event), time_[event] + inserted_us_before(event)};
    const Run& was = sweeps_[sweep].by_layer[layer];
    const int64_t far = owner == nowhere ? (layer == last_recorded ? layers_ - 1 : layer) : now + layer - owner;
    return place_in(sweeps_[sweep], std::clamp<int64_t>(far, 0, layers_ - 1), event - was.begin);
  }

 private:
  /// The layer of a module. Operators of ancestor modules belong to the layer in which they run.
  int64_t layer_of(const std::string& module) const {
    if (module.starts_with(list_)) return std::stoll(module.substr(list_.size()));
    const bool ancestor = module.empty() || list_.starts_with(module + ".");
    return ancestor ? nowhere : elsewhere;
  }

  std::vector<Run> runs() const {
    std::vector<const TensorLife*> births(step_.events, nullptr);
    for (const TensorLife& tensor : step_.tensors) {
      if (tensor.born >= 0) births[tensor.born] = &tensor;
    }
    std::vector<Run> result;
    bool open = false;
    for (const auto e : c10::irange(step_.events)) {
      if (!births[e]) continue;
      const int64_t layer = layer_of(births[e]->module);
      const bool same_phase = !result.empty() && result.back().phase == births[e]->phase;
      if (open && same_phase && (layer == nowhere || layer == result.back().layer)) continue;
      if (open) result.back().end = e;
      open = layer >= 0;
      if (open) result.push_back({layer, e, step_.events, births[e]->phase});
    }
    return result;
  }

  void find_sweeps(const std::vector<Run>& runs) {
    for (size_t i = 0; i < runs.size();) {
      const size_t end = i + last_recorded;
      const bool whole = end < runs.size() && runs[i].layer + runs[end].layer == last_recorded &&
                         runs[i + middle].layer == middle && runs[i].layer != middle &&
                         runs[i].phase == runs[end].phase;
      TORCH_CHECK(whole || runs[i].phase == "optimizer", "extrapolate_depth: expected the phase ", runs[i].phase,
                  " of the step to run all layers of ", list_, "* in order, found layer ", runs[i].layer,
                  " without the others.");
      if (whole) {
        Sweep sweep{.ascending = runs[i].layer == 0};
        for (const auto k : c10::irange(recorded_layers)) sweep.by_layer[runs[i + k].layer] = runs[i + k];
        sweeps_.push_back(std::move(sweep));
      }
      i += whole ? recorded_layers : 1;
    }
  }

  int64_t copies() const { return layers_ - recorded_layers; }  // in addition to the recorded layer
  int64_t inserted_before(int64_t event) const {
    int64_t sum = 0;
    for (const Sweep& sweep : sweeps_) {
      if (sweep.repeated().end <= event) sum += copies() * (sweep.repeated().end - sweep.repeated().begin);
    }
    return sum;
  }
  double inserted_us_before(int64_t event) const {
    double sum = 0;
    for (const Sweep& sweep : sweeps_) {
      if (sweep.repeated().end <= event) sum += static_cast<double>(copies()) * duration(sweep.repeated());
    }
    return sum;
  }
  double duration(const Run& run) const { return time_[run.end] - time_[run.begin]; }

  /// Params: layer – of the deep model; offset – relative to the start of its run
  Place place_in(const Sweep& sweep, int64_t layer, int64_t offset) const {
    const int64_t recorded = layer == 0 ? 0 : layer == layers_ - 1 ? last_recorded : middle;
    const Run& run = sweep.by_layer[recorded];
    const int64_t inside = std::min(offset, run.end - run.begin - 1);
    const int64_t nth = recorded != middle ? 0 : sweep.ascending ? layer - 1 : layers_ - 2 - layer;
    return {run.begin + inside + inserted_before(run.begin) + nth * (run.end - run.begin),
            time_[run.begin + inside] + inserted_us_before(run.begin) + static_cast<double>(nth) * duration(run)};
  }

  const TensorTimeline& step_;
  const std::string list_;
  const int64_t layers_;
  std::vector<Sweep> sweeps_;
  std::vector<std::pair<int64_t, int64_t>> run_of_;  ///< for each event: sweep and layer
  std::vector<double> time_;                         ///< of each event, and of the end
};

std::string renamed(const std::string& name, const std::string& list, int64_t layer) {
  if (!name.starts_with(list)) return name;
  return list + std::to_string(layer) + name.substr(std::min(name.find_first_of(". ", list.size()), name.size()));
}

}  // namespace

std::string repeated_block(const std::string& module) {
  size_t end = 0;
  for (size_t begin = 0; begin < module.size(); begin = end + 1) {
    end = std::min(module.find('.', begin), module.size());
    if (std::isdigit(static_cast<unsigned char>(module[begin]))) return module.substr(0, end);
  }
  return "";
}

ExtrapolatedStep extrapolate_depth(const TensorTimeline& step, int64_t layers) {
  TORCH_CHECK_VALUE(layers >= recorded_layers, "extrapolate_depth: expected at least ", recorded_layers,
                    " layers, got ", layers, ".");
  const Stretch stretch(step, layers);
  std::vector<std::pair<TensorLife, size_t>> lives;
  const auto add = [&](size_t index, int64_t owner, int64_t now) {
    TensorLife life = step.tensors[index];
    const auto born = stretch.place(life.born, owner, now), died = stretch.place(life.died, owner, now);
    life.born = born.event;
    life.born_us = born.us;
    life.died = died.event;
    life.died_us = died.us;
    if (owner >= 0) {
      life.name = renamed(life.name, stretch.list(), now);
      life.module = renamed(life.module, stretch.list(), now);
    }
    lives.emplace_back(std::move(life), index);
  };
  for (const auto i : c10::irange(step.tensors.size())) {
    const int64_t owner = stretch.owner(step.tensors[i]);
    const int64_t first = owner == last_recorded ? layers - 1 : owner;
    const int64_t end = owner == middle ? layers - 1 : first + 1;
    for (int64_t now = first; now < end; ++now) add(i, owner, now);
  }
  std::stable_sort(lives.begin(), lives.end(),
                   [](const auto& a, const auto& b) { return a.first.born < b.first.born; });
  const auto end = stretch.place(step.events, nowhere, nowhere);
  ExtrapolatedStep result{.step = {.events = end.event, .begin_us = step.begin_us, .end_us = end.us}};
  result.step.tensors.reserve(lives.size());
  result.like.reserve(lives.size());
  for (auto& [life, index] : lives) {
    result.step.tensors.push_back(std::move(life));
    result.like.push_back(index);
  }
  return result;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

std::vector<Shape> full_shapes(const models::ModelSkeleton& skeleton, const NamedShapes& small,
                               const std::vector<NamedShapes>& others) {
  std::vector<Shape> result;
  result.reserve(small.size());
  for (const auto i : c10::irange(small.size())) {
    Shape shape{.sizes = small[i].second};
    for (const auto k : c10::irange(others.size())) {
      const int64_t models::ModelSize::*what = skeleton.others[k].what;
      for (const auto d : c10::irange(shape.sizes.size())) {
        const bool grows = others[k][i].second[d] != small[i].second[d];
        if (grows) shape.sizes[d] = shape.sizes[d] / (skeleton.small.*what) * (skeleton.full.*what);
      }
    }
    const bool repeated =
        skeleton.full.layers > skeleton.small.layers && repeated_block(small[i].first).ends_with(".1");
    if (repeated) shape.count = skeleton.full.layers - 2;
    result.push_back(std::move(shape));
  }
  return result;
}

}  // namespace bellows::train
