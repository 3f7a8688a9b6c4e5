#include "bellows/plan/simulator/cluster_measurement.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "bellows/core/grad_mode.h"
#include "bellows/core/stats.h"
#include "bellows/plan/link_bandwidth.h"
#include "bellows/system/machine.h"

namespace bellows::train {

namespace {

/// Returns the median seconds of a call.
double call_seconds(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  constexpr int warm_up = 3, repeats = 15;
  std::vector<double> seconds;
  for (int i = 0; i < warm_up + repeats; ++i) {
    const auto start = Clock::now();
    call();
    if (i >= warm_up) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(seconds);
}

double measure_matmul(at::ScalarType dtype) {
  constexpr int64_t size = 1024;
  const at::Tensor a = at::ones({size, size}, dtype), b = at::ones({size, size}, dtype);
  return 2.0 * size * size * size / call_seconds([&] { at::mm(a, b); });
}

double measure_attention() {
  constexpr int64_t batch = 4, heads = 8, tokens = 512, width = 64;
  const at::Tensor x = at::ones({batch, heads, tokens, width}, at::kFloat);
  const double operations = 2.0 * batch * heads * tokens * tokens * width;  // causal: half of all pairs
  return operations / call_seconds([&] { at::scaled_dot_product_attention(x, x, x, {}, 0.0, /*is_causal=*/true); });
}

double measure_memory() {
  constexpr int64_t count = 1 << 25;
  const at::Tensor a = at::ones({count}, at::kFloat), b = at::ones({count}, at::kFloat);
  at::Tensor sum = at::ones({count}, at::kFloat);
  return 3.0 * count * sizeof(float) / call_seconds([&] { at::add_out(sum, a, b); });
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
  cluster.memory_bytes_per_second = measure_memory() / threads;
  cluster.flops["fp32"] = measure_matmul(at::kFloat) / threads;
  if (machine.has_fast_bf16()) cluster.flops["bf16"] = measure_matmul(at::kBFloat16) / threads;
  cluster.attention_achieved = std::min(1.0, measure_attention() / threads / cluster.flops["fp32"]);
  cluster.within = {measure_link(2), measure_link_latency(2)};
  cluster.between = cluster.within;
  return cluster;
}

}  // namespace bellows::train
