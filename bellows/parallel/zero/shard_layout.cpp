#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <fnmatch.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "bellows/core/error.h"
#include "bellows/core/round_up.h"
#include "bellows/parallel/zero/shard_layout.h"

namespace bellows::parallel {

namespace {

// Parameters start at the alignment of an allocator, so that kernels are as fast and round in the same way as before.
constexpr int64_t alignment_bytes = 64;

int64_t alignment_of(const at::Tensor& tensor, int64_t block) {
  return std::max(alignment_bytes / static_cast<int64_t>(tensor.element_size()), block);
}

std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  if (!tensor.is_contiguous()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  }
  return order;
}

void check_own_memory(const NamedTensors& parameters) {
  std::vector<std::pair<const char*, const NamedTensors::value_type*>> by_address;
  by_address.reserve(parameters.size());
  for (const auto& item : parameters) {
    if (item.second.numel() > 0) by_address.emplace_back(static_cast<const char*>(item.second.const_data_ptr()), &item);
  }
  std::sort(by_address.begin(), by_address.end());
  for (size_t i = 1; i < by_address.size(); ++i) {
    const auto& [begin, before] = by_address[i - 1];
    const auto& [next, item] = by_address[i];
    TORCH_CHECK_VALUE(begin + before->second.nbytes() <= next, "zero_optimizer: parameters \"", before->first,
                      "\" and \"", item->first,
                      "\" share memory without being the same tensor. Tie weights by registering one tensor twice.");
  }
}

/// The parameters of a bucket under construction, and its length.
struct OpenUnit {
  at::TensorOptions kind;
  std::string module;  ///< of which all parameters belong to this bucket; empty: of none
  std::vector<size_t> places = {};
  int64_t length = 0;
};

OpenUnit& unit_for(std::vector<OpenUnit>& open, const at::Tensor& parameter, const std::string& module) {
  const auto found = std::find_if(open.begin(), open.end(), [&](const OpenUnit& unit) {
    return unit.module == module && unit.kind.dtype() == parameter.dtype() && unit.kind.device() == parameter.device();
  });
  if (found != open.end()) return *found;
  open.push_back({.kind = parameter.options(), .module = module});
  return open.back();
}

/// The outermost module of a parameter that matches a pattern; empty if there is none. The modules of "a.b.weight" are
/// "a" and "a.b".
std::string matching_module(const std::string& name, const std::string& pattern) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::string module = name.substr(0, dot);
    if (fnmatch(pattern.c_str(), module.c_str(), 0) == 0) return module;
  }
  return {};
}

std::vector<std::string> all_modules(const NamedTensors& parameters) {
  std::set<std::string> modules;
  for (const auto& [name, parameter] : parameters) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      modules.insert(name.substr(0, dot));
  }
  return {modules.begin(), modules.end()};
}

/// For each parameter, the module that a pattern names; empty if none does.
std::vector<std::string> modules_of(const NamedTensors& parameters, const std::vector<std::string>& patterns) {
  std::vector<std::string> result(parameters.size());
  std::vector<const std::string*> matched_by(parameters.size());
  for (const std::string& pattern : patterns) {
    bool matches = false;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = parameters[i].first;
      std::string module = matching_module(name, pattern);
      if (module.empty()) continue;
      TORCH_CHECK_VALUE(!matched_by[i], "zero_optimizer: parameter \"", name, "\" belongs to a module that matches \"",
                        pattern, "\", and to one that matches \"", *matched_by[i],
                        "\". Change `units` so that each parameter belongs to one unit.");
      matches = true;
      matched_by[i] = &pattern;
      result[i] = std::move(module);
    }
    TORCH_CHECK_VALUE(matches, "zero_optimizer: no module with parameters matches \"", pattern,
                      "\" in `units`. A tied weight belongs only to the module of its first name.",
                      did_you_mean(pattern, all_modules(parameters)));
  }
  return result;
}

/// Allocates the bucket's buffer and moves its parameters there.
Unit fill_unit(const OpenUnit& open, std::vector<Place>& places, const ShardGroups& groups,
               const LayoutOptions& options) {
  const int64_t block = options.block;
  const at::Tensor& first = places[open.places.front()].parameter;
  const int64_t ranks = groups.shard.size(), parts = groups.state_parts();
  const int64_t part = round_up(round_up(open.length, ranks * parts) / (ranks * parts), alignment_of(first, block));
  const int64_t slice = part * parts;
  const int64_t own = slice * groups.shard.rank() + (groups.divide_state ? part * groups.replicas->rank() : 0);
  const at::TensorOptions kind = first.options().requires_grad(false);
  Unit unit{.flat = options.empty ? at::empty({slice * ranks}, kind) : at::zeros({slice * ranks}, kind),
            .slice = slice,
            .own = own,
            .places = open.places};
  for (const size_t index : open.places) {
    Place& place = places[index];
    const at::Tensor view = place.view_of(unit.flat);
    if (!options.empty) view.copy_(place.parameter);
    place.parameter.set_data(view);
    place = place.with_range(own, own + part);
    place.piece = unit.flat.narrow(0, place.count > 0 ? place.offset + place.begin : 0, place.count);
  }
  return unit;
}

/// The modules of the trained parameters, followed by those of the frozen ones.
std::vector<std::string> modules_of_all(NamedTensors parameters, const NamedTensors& frozen,
                                        const std::vector<std::string>& patterns) {
  parameters.insert(parameters.end(), frozen.begin(), frozen.end());
  check_own_memory(parameters);
  return modules_of(parameters, patterns);
}

/// Appends buckets with these parameters to the layout.
void append(Layout& layout, const NamedTensors& parameters, const std::string* modules, const ShardGroups& groups,
            const LayoutOptions& options) {
  std::vector<OpenUnit> open;
  const auto first = static_cast<std::ptrdiff_t>(layout.units.size());
  for (size_t i = parameters.size(); i-- > 0;) {
    const auto& [name, parameter] = parameters[i];
    OpenUnit& unit = unit_for(open, parameter, modules[i]);
    unit.places.push_back(layout.places.size());
    const bool dense = parameter.is_non_overlapping_and_dense();
    layout.places.push_back({.name = name,
                             .parameter = parameter,
                             .order = memory_order(dense ? parameter : parameter.contiguous()),
                             .offset = unit.length});
    unit.length += round_up(parameter.numel(), alignment_of(parameter, options.block));
    const int64_t bytes = unit.length * static_cast<int64_t>(parameter.element_size());
    if (!unit.module.empty() || bytes < options.bucket_bytes) continue;
    layout.units.push_back(fill_unit(unit, layout.places, groups, options));
    open.erase(open.begin() + (&unit - open.data()));
  }
  for (const OpenUnit& unit : open) layout.units.push_back(fill_unit(unit, layout.places, groups, options));
  // A bucket is complete when the gradient of its first parameter arrives. Buckets are sent in this order.
  const auto complete = [](const Unit& unit) { return unit.places.back(); };
  std::stable_sort(layout.units.begin() + first, layout.units.end(),
                   [&](const Unit& a, const Unit& b) { return complete(a) < complete(b); });
}

}  // namespace

bool matches_module(const NamedTensors& parameters, const std::string& pattern) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const auto& item) { return !matching_module(item.first, pattern).empty(); });
}

at::Tensor Place::view_of(const at::Tensor& buffer) const {
  std::vector<int64_t> strides(order.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0; stride *= parameter.size(order[i])) {
    strides[static_cast<size_t>(order[i])] = stride;
  }
  return buffer.as_strided(parameter.sizes(), strides, offset);
}

at::Tensor Place::run_of(const at::Tensor& tensor) const {
  return tensor.permute(order).reshape({-1}).narrow(0, begin, count);
}

Place Place::with_range(int64_t start, int64_t end) const {
  Place result = *this;
  const int64_t first = std::max(offset, start), last = std::min(offset + parameter.numel(), end);
  result.count = std::max<int64_t>(last - first, 0);
  result.begin = result.count > 0 ? first - offset : 0;
  return result;
}

Place Place::held_by(int rank, const Unit& bucket) const {
  const int64_t start = bucket.slice * rank;
  Place held = with_range(start, start + bucket.slice);
  held.piece = bucket.shard.narrow(0, held.count > 0 ? held.offset + held.begin - start : 0, held.count);
  return held;
}

std::vector<std::pair<comm::ShardSpec, at::Tensor>> Place::boxes(const at::Tensor& run) const {
  const std::vector<int64_t> sizes = parameter.sizes().vec();
  if (count == 0) return {};
  if (std::is_sorted(order.begin(), order.end())) {
    if (count == parameter.numel()) return {{comm::ShardSpec::whole(sizes), run.view(sizes)}};
    return {{comm::ShardSpec::run(sizes, begin, count), run}};
  }
  std::vector<int64_t> sizes_in_memory, back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sizes_in_memory.push_back(sizes[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  const std::vector<comm::ShardSpec> in_memory = comm::ShardSpec::run(sizes_in_memory, begin, count).boxes();
  std::vector<std::pair<comm::ShardSpec, at::Tensor>> result;
  result.reserve(in_memory.size());
  int64_t done = 0;
  for (const comm::ShardSpec& box : in_memory) {
    comm::ShardSpec spec{sizes, {}, {}};
    for (const int64_t dim : back) {
      spec.offset.push_back(box.offset[static_cast<size_t>(dim)]);
      spec.length.push_back(box.length[static_cast<size_t>(dim)]);
    }
    const int64_t numel = spec.numel();
    result.emplace_back(std::move(spec), run.narrow(0, done, numel).view(box.length).permute(back));
    done += numel;
  }
  return result;
}

Layout lay_out(const NamedTensors& trained, const NamedTensors& frozen, const ShardGroups& groups,
               const LayoutOptions& options) {
  const c10::NoGradGuard no_grad;
  const std::vector<std::string> modules = modules_of_all(trained, frozen, options.units);
  Layout layout;
  layout.places.reserve(modules.size());
  append(layout, trained, modules.data(), groups, options);
  layout.trained_places = layout.places.size();
  layout.trained_units = layout.units.size();
  append(layout, frozen, modules.data() + trained.size(), groups, options);
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    for (const size_t place : layout.units[unit].places) layout.places[place].unit = unit;
  }
  return layout;
}

void read_shard(const Unit& unit, const std::vector<Place>& places, int rank, const WeightsSource& weights) {
  for (const size_t index : unit.places) {
    const Place held = places[index].held_by(rank, unit);
    for (const auto& [spec, part] : held.boxes(held.piece)) weights.read(held.name, spec, part);
  }
}

}  // namespace bellows::parallel
