#pragma once

#include <cstdint>

#include "bellows/plan/simulator/cluster.h"

namespace bellows::train {

/// Returns the link that a ring of ranks uses. If the ring leaves a node, several rings use the links of all its devices
/// at the same time, as in NCCL. The bandwidth is then that of these links together, but at most that of links within
/// the node. In each step of the ring, the slowest link determines the latency.
/// Params: ranks, stride – the ring has the ranks 0, stride, 2 · stride, …
///         all_ranks – number of ranks of the job. If they share cores and outnumber them, they also take turns
ClusterLink ring_link(const Cluster& cluster, int64_t ranks, int64_t stride, int64_t all_ranks);

/// Returns the seconds of an all-gather or reduce-scatter in a ring: (n - 1) · latency + (n - 1) / n · bytes / bandwidth.
/// An all-reduce is one of each, and takes twice as long.
/// Params: bytes – size of the complete tensor
/// Ref:    Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005
double gather_seconds(const ClusterLink& link, int64_t ranks, double bytes);
double all_reduce_seconds(const ClusterLink& link, int64_t ranks, double bytes);
/// Returns the seconds in which one rank sends a message to another one.
double send_seconds(const ClusterLink& link, double bytes);

}  // namespace bellows::train
