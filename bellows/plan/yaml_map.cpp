#include "bellows/plan/yaml_map.h"

#include <c10/util/Exception.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "bellows/core/error.h"

namespace bellows::train {

namespace {

std::string shown(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  return node.IsScalar() ? "\"" + node.Scalar() + "\"" : "a list or a map";
}

}  // namespace

YamlMap::YamlMap(const YAML::Node& map, std::string where)
    : map_(std::make_shared<const YAML::Node>(map)), where_(std::move(where)) {
  TORCH_CHECK_VALUE(map.IsMap(), where_, ": expected a map of keys and values, found other content.");
}

YamlMap YamlMap::parse(std::string_view text, const std::string& where) {
  try {
    return YamlMap(YAML::Load(std::string(text)), where);
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, where, ", line ", error.mark.line + 1, ": the file is not valid YAML: ", error.msg, ".");
  }
}

bool YamlMap::has(const std::string& key) const {
  return (*map_)[key].IsDefined();
}

void YamlMap::check_keys(const std::vector<std::string>& known) const {
  std::set<std::string> seen;
  for (const auto& item : *map_) {
    const auto key = item.first.as<std::string>("");
    TORCH_CHECK_VALUE(seen.insert(key).second, where_, ": the key \"", key, "\" occurs twice. Remove one of them.");
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(), where_, ": the key \"", key,
                      "\" is unknown.", did_you_mean(key, known));
  }
}

double YamlMap::number(const std::string& key, double low, double high, double otherwise) const {
  const YAML::Node node = (*map_)[key];
  if (!node.IsDefined() && !std::isnan(otherwise)) return otherwise;
  const auto value = node.IsDefined() && node.IsScalar() ? node.as<double>(std::nan("")) : std::nan("");
  TORCH_CHECK_VALUE(value >= low && value <= high, where_, ": expected ", key, " from ", low, " to ", high, ", found ",
                    shown(node), ".");
  return value;
}

int64_t YamlMap::count(const std::string& key, double high, double otherwise) const {
  const double value = number(key, 1, high, otherwise);
  TORCH_CHECK_VALUE(value == std::floor(value), where_, ": expected ", key, " to be a whole number, found ", value,
                    ".");
  return static_cast<int64_t>(value);
}

std::map<std::string, double> YamlMap::numbers(const char* key, const std::vector<std::string>& known, double low,
                                               double high) const {
  std::map<std::string, double> result;
  if (!has(key)) return result;
  const YamlMap map = part(key);
  map.check_keys(known);
  for (const std::string& name : known) {
    if (map.has(name)) result[name] = map.number(name, low, high, std::numeric_limits<double>::quiet_NaN());
  }
  return result;
}

bool YamlMap::flag(const char* key) const {
  if (!has(key)) return false;
  bool value = false;
  TORCH_CHECK_VALUE(YAML::convert<bool>::decode((*map_)[key], value), where_, ": expected ", key,
                    " to be true or false, found ", shown((*map_)[key]), ".");
  return value;
}

std::string YamlMap::text(const char* key) const {
  if (!has(key)) return "";
  TORCH_CHECK_VALUE((*map_)[key].IsScalar(), where_, ": expected ", key, " to be text, found ", shown((*map_)[key]),
                    ".");
  return (*map_)[key].Scalar();
}

YamlMap YamlMap::part(const char* key) const {
  TORCH_CHECK_VALUE(has(key), where_, ": the key ", key, " is missing.");
  return YamlMap((*map_)[key], where_ + ": " + key);
}

std::vector<YamlMap> YamlMap::list(const char* key) const {
  TORCH_CHECK_VALUE(has(key), where_, ": the key ", key, " is missing.");
  const YAML::Node node = (*map_)[key];
  TORCH_CHECK_VALUE(node.IsSequence(), where_, ": expected ", key, " to be a list, found ",
                    node.IsMap() ? "a map" : shown(node), ".");
  std::vector<YamlMap> result;
  result.reserve(node.size());
  for (size_t i = 0; i < node.size(); ++i)
    result.emplace_back(node[i], where_ + ": " + key + ", entry " + std::to_string(i + 1));
  return result;
}

}  // namespace bellows::train
