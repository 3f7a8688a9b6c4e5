#include "bellows/plan/simulator/cluster.h"

#include <c10/util/Exception.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/system/file.h"

namespace bellows::train {

namespace {

/// Reads the values of a map in a cluster description.
class ClusterReader {
 public:
  ClusterReader(YAML::Node map, std::string where) : map_(std::move(map)), where_(std::move(where)) {
    TORCH_CHECK_VALUE(map_.IsMap(), "cluster: ", where_, ": expected a map of keys and values, found other content.");
  }

  /// Throws: c10::ValueError if the map has other keys, or a key twice
  void check_keys(const std::vector<std::string>& known) const {
    std::set<std::string> seen;
    for (const auto& item : map_) {
      const auto key = item.first.as<std::string>("");
      TORCH_CHECK_VALUE(seen.insert(key).second, "cluster: ", where_, ": the key \"", key,
                        "\" occurs twice. Remove one of them.");
      TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(), "cluster: ", where_, ": the key \"",
                        key, "\" is unknown.", did_you_mean(key, known));
    }
  }

  bool has(const char* key) const { return map_[key].IsDefined(); }

  /// Returns a number from `low` to `high`, or `otherwise` if the key is missing.
  /// Throws: c10::ValueError if the value is no such number, or if a key without `otherwise` (NaN) is missing
  double number(const std::string& key, double low, double high, double otherwise) const {
    const YAML::Node node = map_[key];
    if (!node.IsDefined() && !std::isnan(otherwise)) return otherwise;
    const auto value = node.IsDefined() && node.IsScalar() ? node.as<double>(std::nan("")) : std::nan("");
    TORCH_CHECK_VALUE(value >= low && value <= high, "cluster: ", where_, ": expected ", key, " from ", low, " to ",
                      high, ", found ", shown(node), ".");
    return value;
  }

  int64_t count(const std::string& key) const {
    const double value = number(key, 1, 1e6, 1);
    TORCH_CHECK_VALUE(value == std::floor(value), "cluster: ", where_, ": expected ", key,
                      " to be a whole number, found ", value, ".");
    return static_cast<int64_t>(value);
  }

  std::map<std::string, double> shares(const char* key, double high) const {
    std::map<std::string, double> result;
    if (!has(key)) return result;
    const ClusterReader reader = part(key);
    reader.check_keys({"fp32", "bf16", "fp8"});
    for (const char* dtype : {"fp32", "bf16", "fp8"}) {
      if (reader.has(dtype)) result[dtype] = reader.number(dtype, 1e-6, high, std::nan(""));
    }
    return result;
  }

  ClusterLink link(const char* key) const {
    const ClusterReader reader = part(key);
    reader.check_keys({"bytes_per_second", "latency_s"});
    return {reader.number("bytes_per_second", 1, 1e18, std::nan("")), reader.number("latency_s", 0, 60, 0)};
  }

  bool flag(const char* key) const {
    if (!has(key)) return false;
    bool value = false;
    TORCH_CHECK_VALUE(YAML::convert<bool>::decode(map_[key], value), "cluster: ", where_, ": expected ", key,
                      " to be true or false, found ", shown(map_[key]), ".");
    return value;
  }

  std::string text(const char* key) const {
    if (!has(key)) return "";
    TORCH_CHECK_VALUE(map_[key].IsScalar(), "cluster: ", where_, ": expected ", key, " to be text, found ",
                      shown(map_[key]), ".");
    return map_[key].Scalar();
  }

 private:
  ClusterReader part(const char* key) const {
    TORCH_CHECK_VALUE(has(key), "cluster: ", where_, ": the key ", key, " is missing.");
    return {map_[key], where_ + ": " + key};
  }
  static std::string shown(const YAML::Node& node) {
    if (!node.IsDefined() || node.IsNull()) return "nothing";
    return node.IsScalar() ? "\"" + node.Scalar() + "\"" : "a list or a map";
  }

  YAML::Node map_;
  std::string where_;
};

YAML::Node yaml_of_cluster(std::string_view text, const std::string& where) {
  try {
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, "cluster: ", where, ", line ", error.mark.line + 1,
                      ": the file is not valid YAML: ", error.msg, ".");
  }
}

void emit_shares(YAML::Emitter& yaml, const char* key, const std::map<std::string, double>& shares) {
  if (shares.empty()) return;
  yaml << YAML::Key << key << YAML::Value << YAML::Flow << YAML::BeginMap;
  for (const auto& [dtype, share] : shares) yaml << YAML::Key << dtype << YAML::Value << share;
  yaml << YAML::EndMap;
}

void emit_link(YAML::Emitter& yaml, const char* key, const ClusterLink& link) {
  yaml << YAML::Key << key << YAML::Value << YAML::Flow << YAML::BeginMap;
  yaml << YAML::Key << "bytes_per_second" << YAML::Value << link.bytes_per_second;
  yaml << YAML::Key << "latency_s" << YAML::Value << link.latency_s << YAML::EndMap;
}

double value_or(const std::map<std::string, double>& values, const std::string& key, double otherwise) {
  const auto found = values.find(key);
  return found == values.end() ? otherwise : found->second;
}

double peak_flops(const Cluster& cluster, const std::string& dtype) {
  const double peak = value_or(cluster.flops, dtype, 0);
  TORCH_CHECK_VALUE(peak > 0, "cluster ", cluster.name, ": expected flops of ", dtype,
                    ", found none. Add them to the description, or choose another dtype.");
  return peak;
}

}  // namespace

double Cluster::matmul_flops(const std::string& dtype) const {
  return peak_flops(*this, dtype) * value_or(achieved, dtype, 1);
}

double Cluster::attention_flops(const std::string& dtype) const {
  return peak_flops(*this, dtype == "fp8" ? "bf16" : dtype) * attention_achieved;
}

Cluster parse_cluster(std::string_view text, const std::string& where) {
  const ClusterReader reader(yaml_of_cluster(text, where), where);
  reader.check_keys({"name", "devices_per_node", "shared", "memory_bytes", "memory_bytes_per_second", "flops",
                     "achieved", "attention_achieved", "overlap", "within", "between"});
  constexpr double required = std::numeric_limits<double>::quiet_NaN();
  Cluster cluster;
  cluster.name = reader.text("name");
  cluster.devices_per_node = reader.count("devices_per_node");
  cluster.shared = reader.flag("shared");
  cluster.memory_bytes = reader.number("memory_bytes", 1, 1e18, required);
  cluster.memory_bytes_per_second = reader.number("memory_bytes_per_second", 1, 1e18, required);
  cluster.flops = reader.shares("flops", 1e21);
  TORCH_CHECK_VALUE(!cluster.flops.empty(), "cluster: ", where,
                    ": expected flops of fp32, bf16 or fp8, found none. Add a line such as flops: {bf16: 989e12}.");
  cluster.achieved = reader.shares("achieved", 1);
  for (const auto& [dtype, share] : cluster.achieved)
    TORCH_CHECK_VALUE(cluster.flops.contains(dtype), "cluster: ", where, ": achieved has the dtype ", dtype,
                      ", but flops does not. Add it to flops, or remove it from achieved.");
  cluster.attention_achieved = reader.number("attention_achieved", 1e-6, 1, cluster.attention_achieved);
  cluster.overlap = reader.number("overlap", 0, 1, cluster.overlap);
  cluster.within = reader.link("within");
  cluster.between = reader.has("between") ? reader.link("between") : cluster.within;
  return cluster;
}

Cluster read_cluster(const std::string& path) {
  return parse_cluster(read_text_file(path), path);
}

std::string to_yaml(const Cluster& cluster) {
  YAML::Emitter yaml;
  yaml.SetDoublePrecision(std::numeric_limits<double>::max_digits10);
  yaml << YAML::BeginMap;
  yaml << YAML::Key << "name" << YAML::Value << YAML::DoubleQuoted << cluster.name;
  yaml << YAML::Key << "devices_per_node" << YAML::Value << cluster.devices_per_node;
  yaml << YAML::Key << "shared" << YAML::Value << cluster.shared;
  yaml << YAML::Key << "memory_bytes" << YAML::Value << cluster.memory_bytes;
  yaml << YAML::Key << "memory_bytes_per_second" << YAML::Value << cluster.memory_bytes_per_second;
  emit_shares(yaml, "flops", cluster.flops);
  emit_shares(yaml, "achieved", cluster.achieved);
  yaml << YAML::Key << "attention_achieved" << YAML::Value << cluster.attention_achieved;
  yaml << YAML::Key << "overlap" << YAML::Value << cluster.overlap;
  emit_link(yaml, "within", cluster.within);
  emit_link(yaml, "between", cluster.between);
  yaml << YAML::EndMap;
  return std::string(yaml.c_str()) + "\n";
}

}  // namespace bellows::train
