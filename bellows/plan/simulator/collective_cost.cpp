#include "bellows/plan/simulator/collective_cost.h"

#include <algorithm>

namespace bellows::train {

ClusterLink ring_link(const Cluster& cluster, int64_t ranks, int64_t stride, int64_t all_ranks) {
  const int64_t devices = cluster.devices_per_node;
  ClusterLink link = cluster.within;
  if (cluster.shared) {
    const double turns = std::max(1.0, static_cast<double>(all_ranks) / static_cast<double>(devices));
    return {link.bytes_per_second / turns, link.latency_s * turns};
  }
  if (ranks * stride <= devices) return link;
  const auto links = static_cast<double>(std::max<int64_t>(1, devices / stride));
  link.bytes_per_second = std::min(link.bytes_per_second, links * cluster.between.bytes_per_second);
  link.latency_s = std::max(link.latency_s, cluster.between.latency_s);
  return link;
}

double gather_seconds(const ClusterLink& link, int64_t ranks, double bytes) {
  const auto steps = static_cast<double>(ranks - 1);
  return steps * (link.latency_s + bytes / static_cast<double>(ranks) / link.bytes_per_second);
}

double all_reduce_seconds(const ClusterLink& link, int64_t ranks, double bytes) {
  return 2 * gather_seconds(link, ranks, bytes);
}

double send_seconds(const ClusterLink& link, double bytes) {
  return link.latency_s + bytes / link.bytes_per_second;
}

}  // namespace bellows::train
