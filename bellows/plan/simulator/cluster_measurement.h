#pragma once

#include "bellows/plan/simulator/cluster.h"

namespace bellows::train {

/// Measures this machine for the simulator. The devices are the threads of libtorch, which all ranks share. It measures
/// a matmul of 1024 × 1024 in fp32, and in bf16 if the processor is faster with it. The other measurements are causal
/// attention of 512 tokens, an addition of arrays that are larger than the caches, and all-reduces between two threads
/// (link_bandwidth.h).
/// Cost:    about two seconds and 400 MB
/// Threads: call it while nothing else runs
/// Throws:  c10::Error if the threads cannot connect
Cluster measure_cluster();

}  // namespace bellows::train
