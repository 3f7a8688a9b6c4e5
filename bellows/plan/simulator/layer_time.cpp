#include "bellows/plan/simulator/layer_time.h"

#include <algorithm>

#include "bellows/plan/simulator/collective_cost.h"

namespace bellows::train {

namespace {

constexpr double backward_of_attention = 2.5;  // five matrix multiplications instead of two (arXiv:2307.08691)
// Bytes per logit of the loss: the logits, log-softmax in fp32 and its gradient are each written, and read by the next
// step.
constexpr double loss_bytes = 20;

double device_share(const Cluster& cluster, const SimulatedMesh& mesh, const SimulatedJob& job) {
  if (!cluster.shared) return 1;
  const double share = static_cast<double>(cluster.devices_per_node) / static_cast<double>(mesh.ranks());
  return job.threads > 0 ? std::min(share, static_cast<double>(job.threads)) : share;
}

}  // namespace

PassTime& PassTime::operator+=(const PassTime& other) {
  compute_s += other.compute_s;
  tensor_s += other.tensor_s;
  context_s += other.context_s;
  return *this;
}

LayerTimes::LayerTimes(const TransformerShape& shape, const Cluster& cluster, const SimulatedMesh& mesh,
                       const SimulatedJob& job)
    : shape_(shape),
      cluster_(cluster),
      mesh_(mesh),
      job_(job),
      devices_(device_share(cluster, mesh, job)),
      tokens_(micro_tokens(shape, mesh, job)),
      length_(static_cast<double>(length_of(shape, job))),
      tensor_(static_cast<double>(mesh.tensor)) {}

double LayerTimes::matmul_s(double elements, const std::string& dtype) const {
  return 2 * elements * tokens_ / tensor_ / (cluster_.matmul_flops(dtype) * devices_);
}

double LayerTimes::memory_s(double bytes) const {
  return bytes / (cluster_.memory_bytes_per_second * devices_);
}

double LayerTimes::attention_s() const {
  const auto ranks = static_cast<double>(mesh_.context);
  const double causal = shape_.causal ? 0.5 : 1;
  // In contiguous order, the last rank's queries see the keys of all ranks.
  const double imbalance = shape_.causal && !job_.zigzag ? 2 - 1 / ranks : 1;
  const double operations = 4 * causal * imbalance * tokens_ * length_ * static_cast<double>(shape_.query_width());
  return operations / tensor_ / (cluster_.attention_flops(job_.dtype) * devices_);
}

double LayerTimes::elementwise_bytes() const {
  const double undivided = job_.sequence_parallel ? 1 / tensor_ : 1;
  double elements = 10 * static_cast<double>(shape_.width) * undivided;
  elements +=
      static_cast<double>(2 * (shape_.query_width() + shape_.kv_width()) + (shape_.gated ? 3 : 2) * shape_.inner) /
      tensor_;
  // Scores are written, read and written by softmax, and read again.
  if (!job_.fused_attention) elements += 4 * static_cast<double>(shape_.heads) * length_ / tensor_;
  return elements * tokens_ * element_bytes(job_);
}

double LayerTimes::all_reduce_s() const {
  if (mesh_.tensor == 1) return 0;
  const ClusterLink link = ring_link(cluster_, mesh_.tensor, 1, mesh_.ranks());
  const double bytes = tokens_ * static_cast<double>(shape_.width) * element_bytes(job_);
  // Chunks of the exchange run during the matrix multiplications of other chunks. The first one cannot.
  const double exposed = job_.async_tensor ? 1 - cluster_.overlap * (1 - 1 / tensor_) : 1;
  return exposed * all_reduce_seconds(link, mesh_.tensor, bytes);
}

double LayerTimes::context_s(double attention_s) const {
  if (mesh_.context == 1) return 0;
  const ClusterLink link = ring_link(cluster_, mesh_.context, mesh_.tensor, mesh_.ranks());
  const double bytes = tokens_ * static_cast<double>(2 * shape_.kv_width()) / tensor_ * element_bytes(job_);
  const double sent = static_cast<double>(mesh_.context - 1) * send_seconds(link, bytes);
  return std::max(0.0, sent - cluster_.overlap * attention_s);
}

PartTime LayerTimes::layer() const {
  const auto matrices = static_cast<double>(shape_.layer_matrices());
  const double linear = matmul_s(matrices, job_.dtype), attention = attention_s();
  const double other = memory_s(elementwise_bytes()), exchange = all_reduce_s();
  const auto inputs = static_cast<double>(2 * shape_.width + shape_.query_width() + shape_.inner);
  const auto outputs = static_cast<double>(shape_.query_width() + 2 * shape_.kv_width() + 2 * shape_.width +
                                           (shape_.gated ? 2 : 1) * shape_.inner);
  const bool casts = job_.dtype == "fp8";
  const double cast = casts ? memory_s(5 * inputs * tokens_ / tensor_) : 0;
  const double cast_back = casts ? memory_s((3 * inputs + 7 * outputs) * tokens_ / tensor_) : 0;
  PartTime time;
  time.forward = {linear + attention + other + cast, 2 * exchange, context_s(attention)};
  time.backward = {2 * linear + backward_of_attention * attention + 2 * other + cast_back,
                   (job_.sequence_parallel ? 3 : 2) * exchange,
                   2 * context_s(backward_of_attention / 2 * attention)};  // keys and values, and their gradients
  if (job_.recomputed == Recomputed::blocks) time.recomputed = time.forward;
  if (job_.recomputed == Recomputed::attention) time.recomputed = {attention, 0, time.forward.context_s};
  if (job_.recomputed == Recomputed::half) time.recomputed = {(linear + cast) / 2 + other, exchange, 0};
  return time;
}

PartTime LayerTimes::embedding() const {
  const double exchange = all_reduce_s();
  const double copied = memory_s(2 * tokens_ * static_cast<double>(shape_.width) * element_bytes(job_));
  return {{copied, exchange, 0}, {}, {2 * copied, 0, 0}};
}

PartTime LayerTimes::head() const {
  if (!shape_.predicts_tokens) return {};
  // Float8 is used in layers only.
  const std::string dtype = job_.dtype == "fp8" ? "bf16" : job_.dtype;
  const double linear = matmul_s(static_cast<double>(shape_.vocabulary * shape_.width), dtype);
  const double loss = memory_s(loss_bytes * tokens_ * static_cast<double>(shape_.vocabulary) / tensor_);
  return {{linear + loss / 2, 0, 0}, {}, {2 * linear + loss / 2, all_reduce_s(), 0}};
}

double LayerTimes::update_s(double parameters) const {
  // Reads weights, gradients and state, and writes weights and state.
  return memory_s(parameters * (12 + 2 * job_.state_bytes));
}

}  // namespace bellows::train
