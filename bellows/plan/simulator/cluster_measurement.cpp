#include "bellows/plan/simulator/cluster_measurement.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "bellows/core/grad_mode.h"
#include "bellows/inspect/profile/machine_peaks.h"
#include "bellows/plan/link_bandwidth.h"
#include "bellows/system/machine.h"

namespace bellows::train {

namespace {

double measure_attention() {
  constexpr int64_t batch = 4, heads = 8, tokens = 512, width = 64;
  const at::Tensor x = at::ones({batch, heads, tokens, width}, at::kFloat);
  const double operations = 2.0 * batch * heads * tokens * tokens * width;  // causal: half of all pairs
  return operations /
         inspect::median_call_seconds([&] { at::scaled_dot_product_attention(x, x, x, {}, 0.0, /*is_causal=*/true); });
}

}  // namespace

Cluster measure_cluster() {
  const no_grad guard;
  const Machine machine = this_machine();
  const auto threads = static_cast<double>(at::get_num_threads());
  Cluster cluster;
  cluster.name = c10::str(machine.cpu, ", ", at::get_num_threads(), " threads");
  cluster.devices_per_node = at::get_num_threads();
  cluster.shared = true;
  cluster.overlap = 0;  // ranks exchange with the cores that compute
  cluster.memory_bytes = static_cast<double>(machine.memory_bytes) / threads;
  cluster.memory_bytes_per_second = inspect::measure_memory_bandwidth() / threads;
  cluster.flops["fp32"] = inspect::measure_matmul_flops(at::kFloat) / threads;
  if (machine.has_fast_bf16()) cluster.flops["bf16"] = inspect::measure_matmul_flops(at::kBFloat16) / threads;
  cluster.attention_achieved = std::min(1.0, measure_attention() / threads / cluster.flops["fp32"]);
  cluster.within = {measure_link(2), measure_link_latency(2)};
  cluster.between = cluster.within;
  return cluster;
}

}  // namespace bellows::train
