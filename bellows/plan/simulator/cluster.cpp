#include "bellows/plan/simulator/cluster.h"

#include <c10/util/Exception.h>
#include <yaml-cpp/yaml.h>

#include <limits>

#include "bellows/plan/yaml_map.h"
#include "bellows/system/file.h"

namespace bellows::train {

namespace {

constexpr double required_number = std::numeric_limits<double>::quiet_NaN();

std::map<std::string, double> cluster_shares(const YamlMap& cluster, const char* key, double high) {
  return cluster.numbers(key, {"fp32", "bf16", "fp8"}, 1e-6, high);
}

ClusterLink cluster_link(const YamlMap& cluster, const char* key) {
  const YamlMap map = cluster.part(key);
  map.check_keys({"bytes_per_second", "latency_s"});
  return {map.number("bytes_per_second", 1, 1e18, required_number), map.number("latency_s", 0, 60, 0)};
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
  const YamlMap reader = YamlMap::parse(text, "cluster: " + where);
  reader.check_keys({"name", "devices_per_node", "shared", "memory_bytes", "memory_bytes_per_second", "flops",
                     "achieved", "attention_achieved", "overlap", "within", "between"});
  Cluster cluster;
  cluster.name = reader.text("name");
  cluster.devices_per_node = reader.count("devices_per_node", 1e6, 1);
  cluster.shared = reader.flag("shared");
  cluster.memory_bytes = reader.number("memory_bytes", 1, 1e18, required_number);
  cluster.memory_bytes_per_second = reader.number("memory_bytes_per_second", 1, 1e18, required_number);
  cluster.flops = cluster_shares(reader, "flops", 1e21);
  TORCH_CHECK_VALUE(!cluster.flops.empty(), "cluster: ", where,
                    ": expected flops of fp32, bf16 or fp8, found none. Add a line such as flops: {bf16: 989e12}.");
  cluster.achieved = cluster_shares(reader, "achieved", 1);
  for (const auto& [dtype, share] : cluster.achieved)
    TORCH_CHECK_VALUE(cluster.flops.contains(dtype), "cluster: ", where, ": achieved has the dtype ", dtype,
                      ", but flops does not. Add it to flops, or remove it from achieved.");
  cluster.attention_achieved = reader.number("attention_achieved", 1e-6, 1, cluster.attention_achieved);
  cluster.overlap = reader.number("overlap", 0, 1, cluster.overlap);
  cluster.within = cluster_link(reader, "within");
  cluster.between = reader.has("between") ? cluster_link(reader, "between") : cluster.within;
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
