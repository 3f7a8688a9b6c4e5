#include "bellows/parallel/placement/device_map.h"

#include <c10/util/Exception.h>

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>

#include "bellows/core/error.h"
#include "bellows/core/round_up.h"
#include "bellows/core/stats.h"

namespace bellows::parallel {

namespace {

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Calls the function for each module that contains a parameter, the outermost module first, until it returns true.
template <class Function>
bool any_module_of(const std::string& parameter, Function function) {
  for (size_t dot = parameter.find('.'); dot != std::string::npos; dot = parameter.find('.', dot + 1)) {
    if (function(parameter.substr(0, dot))) return true;
  }
  return false;
}

std::string owner_of_weight(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

/// The piece of the model to which a parameter belongs.
std::string piece_of(const std::string& parameter, const std::vector<std::string>& patterns,
                     std::set<std::string>& matched) {
  std::string piece = owner_of_weight(parameter);
  any_module_of(parameter, [&](const std::string& module) {
    if (patterns.empty()) {
      const size_t dot = module.rfind('.');
      if (!is_number(std::string_view(module).substr(dot == std::string::npos ? 0 : dot + 1))) return false;
      piece = module;
      return true;
    }
    for (const std::string& pattern : patterns) {
      if (fnmatch(pattern.c_str(), module.c_str(), 0) != 0) continue;
      matched.insert(pattern);
      piece = module;
      return true;
    }
    return false;
  });
  return piece;
}

std::vector<std::string> modules_with_weights(const std::vector<WeightSize>& weights) {
  std::set<std::string> modules;
  for (const WeightSize& weight : weights) {
    any_module_of(weight.name, [&](const std::string& module) {
      modules.insert(module);
      return false;
    });
  }
  return {modules.begin(), modules.end()};
}

std::vector<MappedModule> pieces_of(const std::vector<WeightSize>& weights, const std::vector<std::string>& patterns) {
  std::vector<MappedModule> pieces;
  std::map<std::string, size_t> index;
  std::set<std::string> matched;
  for (const WeightSize& weight : weights) {
    const std::string name = piece_of(weight.name, patterns, matched);
    const auto [place, is_new] = index.try_emplace(name, pieces.size());
    if (is_new) pieces.push_back({.name = name, .parameters = {}});
    MappedModule& piece = pieces[place->second];
    piece.bytes += round_up(weight.bytes, weight_alignment);
    piece.parameters.push_back(weight.name);
  }
  for (const std::string& pattern : patterns) {
    TORCH_CHECK_VALUE(matched.count(pattern), "device map: no module with parameters matches \"", pattern,
                      "\" in `keep_together`.", did_you_mean(pattern, modules_with_weights(weights)));
  }
  return pieces;
}

/// The modules on the device, as one flag per module, and how many bytes they have.
struct Residents {
  std::vector<bool> on_device;
  int64_t bytes = -1;
};

/// Keeps the `count` largest modules on the device, and others if they fit.
/// Params: order – indices of the modules, the largest first; buffers – number of modules in the working memory
Residents residents_with(const std::vector<MappedModule>& pieces, const std::vector<size_t>& order, size_t count,
                         size_t buffers, int64_t budget) {
  Residents result{.on_device = std::vector<bool>(pieces.size(), false)};
  int64_t bytes = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i < count + buffers) bytes += pieces[order[i]].bytes;
    if (i < count) result.on_device[order[i]] = true;
  }
  if (bytes > budget) return result;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (result.on_device[i] || bytes + pieces[i].bytes > budget) continue;
    bytes += pieces[i].bytes;
    result.on_device[i] = true;
  }
  result.bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) result.bytes += result.on_device[i] ? pieces[i].bytes : 0;
  return result;
}

Residents best_residents(const std::vector<MappedModule>& pieces, int64_t budget) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
  Residents best;
  for (const size_t buffers : {2, 1}) {
    for (size_t count = 0; count <= pieces.size(); ++count) {
      Residents one = residents_with(pieces, order, count, buffers, budget);
      if (one.bytes > best.bytes) best = std::move(one);
    }
    if (best.bytes >= 0) break;
  }
  return best;
}

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

void check_budgets(const DeviceMapOptions& options) {
  for (const auto& [name, bytes] :
       {std::pair("device_bytes", options.device_bytes), std::pair("host_bytes", options.host_bytes),
        std::pair("activation_bytes", options.activation_bytes)}) {
    TORCH_CHECK_VALUE(bytes >= 0, "device map: expected a `", name, "` of at least 0, got ", bytes, ".");
  }
}

}  // namespace

std::string to_string(WeightPlace place) {
  return place == WeightPlace::device ? "device" : place == WeightPlace::host ? "host" : "disk";
}

std::vector<WeightSize> weight_sizes(const Model& model) {
  std::vector<WeightSize> sizes;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second)
      sizes.push_back({name, static_cast<int64_t>(parameter.nbytes())});
  }
  return sizes;
}

DeviceMap infer_device_map(const std::vector<WeightSize>& weights, const DeviceMapOptions& options) {
  check_budgets(options);
  DeviceMap map{.modules = pieces_of(weights, options.keep_together)};
  const int64_t budget = options.device_bytes - options.activation_bytes;
  TORCH_CHECK_VALUE(budget >= 0 || !map.modules.empty(), "device map: expected a `device_bytes` of at least ",
                    options.activation_bytes, " bytes (", bytes_text(options.activation_bytes),
                    ") for the activations, got ", options.device_bytes, " bytes.");
  const Residents residents = best_residents(map.modules, budget);
  int64_t largest = 0;
  for (const MappedModule& module : map.modules) largest = std::max(largest, module.bytes);
  const auto is_largest = [&](const MappedModule& module) { return module.bytes == largest; };
  const auto widest = std::ranges::find_if(map.modules, is_largest);
  TORCH_CHECK_VALUE(residents.bytes >= 0, "device map: the budget for weights must be at least ", largest, " bytes (",
                    bytes_text(largest), "), the size of module \"", widest->name, "\", got ",
                    std::max<int64_t>(budget, 0), " bytes",
                    options.activation_bytes > 0 ? " without the activations" : "", ". Increase the budget",
                    options.keep_together.empty() ? "." : ", or match smaller modules in `keep_together`.");
  for (size_t i = 0; i < map.modules.size(); ++i) {
    MappedModule& module = map.modules[i];
    const bool host = map.host_bytes + module.bytes <= options.host_bytes;
    module.place = residents.on_device[i] ? WeightPlace::device : host ? WeightPlace::host : WeightPlace::disk;
    int64_t& sum = module.place == WeightPlace::device ? map.device_bytes
                   : module.place == WeightPlace::host ? map.host_bytes
                                                       : map.disk_bytes;
    sum += module.bytes;
  }
  map.working_bytes = map.all_on_device() ? 0 : budget - map.device_bytes;
  return map;
}

std::string DeviceMap::to_string() const {
  std::string text;
  for (const auto& [name, bytes] : {std::pair("device", device_bytes), std::pair("host", host_bytes),
                                    std::pair("disk", disk_bytes), std::pair("working memory", working_bytes)})
    text += c10::str(name, ": ", bytes_text(bytes), "\n");
  for (const MappedModule& module : modules) {
    text += c10::str(module.name.empty() ? "(model)" : module.name, ": ", parallel::to_string(module.place), ", ",
                     bytes_text(module.bytes), "\n");
  }
  return text;
}

}  // namespace bellows::parallel
