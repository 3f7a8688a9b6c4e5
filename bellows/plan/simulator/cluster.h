#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace bellows::train {

/// A link between devices. A message of n bytes takes latency_s + n / bytes_per_second.
struct ClusterLink {
  double bytes_per_second = 0;  ///< in one direction, of one device
  double latency_s = 0;
  bool operator==(const ClusterLink&) const = default;
};

/// The devices on which a job runs. All nodes are equal. Numbers are those of one device.
struct Cluster {
  std::string name;
  int64_t devices_per_node = 1;
  /// The devices are the cores of one machine, and its ranks share them. A rank of n has devices_per_node / n of them.
  bool shared = false;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  std::map<std::string, double> flops{};     ///< floating-point operations per second at most: fp32, bf16, fp8
  std::map<std::string, double> achieved{};  ///< share of `flops` that matrix multiplications reach; 1 if missing
  double attention_achieved = 0.5;           ///< share of `flops` that fused attention reaches
  /// Share of the time of computation during which exchanges can run without slowing it down. 0 if the ranks exchange
  /// with the cores that compute.
  double overlap = 1;
  ClusterLink within{};   ///< between devices of a node
  ClusterLink between{};  ///< between nodes, for each device

  bool operator==(const Cluster&) const = default;
  /// Floating-point operations per second of matrix multiplications.
  /// Throws: c10::ValueError if the description does not have the dtype
  double matmul_flops(const std::string& dtype) const;
  double attention_flops(const std::string& dtype) const;
};

/// Parses a description in YAML or JSON:
///
///     name: 8 × H100
///     devices_per_node: 8
///     memory_bytes: 96e9
///     memory_bytes_per_second: 2.4e12
///     flops: {bf16: 989.4e12, fp8: 1978.9e12}
///     achieved: {bf16: 0.45}
///     within: {bytes_per_second: 450e9, latency_s: 3.4e-6}
///     between: {bytes_per_second: 50e9, latency_s: 14e-6}
///
/// Other keys have the names of the members. `between` is `within` if it is missing.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if the text is not valid YAML, or if a key is unknown, missing or out of range
Cluster parse_cluster(std::string_view text, const std::string& where);
/// Throws: c10::ValueError like parse_cluster(), or if the file cannot be read
Cluster read_cluster(const std::string& path);
/// Returns the description as YAML. parse_cluster() returns the same cluster.
std::string to_yaml(const Cluster& cluster);

}  // namespace bellows::train
