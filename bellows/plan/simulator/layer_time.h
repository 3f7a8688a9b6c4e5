#pragma once

#include "bellows/plan/simulator/cluster.h"
#include "bellows/plan/simulator/simulated_job.h"

namespace bellows::train {

/// Seconds of a part of the model, for one micro-batch on one rank. `tensor_s` and `context_s` are exchanges that no
/// computation hides.
struct PassTime {
  double compute_s = 0, tensor_s = 0, context_s = 0;

  double total() const { return compute_s + tensor_s + context_s; }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const { return {compute_s * factor, tensor_s * factor, context_s * factor}; }
};

/// The passes through a part of the model.
struct PartTime {
  PassTime forward, recomputed, backward;  ///< backward does not include `recomputed`
};

/// Computes times from operation counts, bytes and rates:
/// - A matrix multiplication of n weights and s tokens takes 2 n s operations in forward, and 4 n s in backward.
/// - Causal attention of s tokens and width w takes 2 s² w operations in forward, and 2.5 times as many in backward.
/// - Other operators read and write their inputs and outputs once. Per token and layer, these are 10 elements of the
///   width (norms and residuals), and 2 of queries and keys (positions). In addition, there are 2 or 3 elements
///   of the inner width (activation function). Backward moves twice as many bytes.
/// - Float8 reads an input twice and writes it once (5 bytes per element), and again in backward (3 bytes). Gradients of
///   outputs take 7 bytes.
/// - The axis tensor all-reduces its activations twice in forward and twice in backward of each layer. With sequence
///   parallelism, these are pairs of reduce-scatter and all-gather, and backward gathers two inputs again.
/// - The axis context passes keys and values around the ring. Attention of one block hides the next block's exchange.
/// Ref: arXiv:2205.05198 (operations and tensor exchange), arXiv:2307.08691 (attention), arXiv:2310.01889 (ring)
class LayerTimes {
 public:
  /// The arguments must live as long as the object.
  /// Throws: c10::ValueError if the cluster does not describe the dtype
  LayerTimes(const TransformerShape& shape, const Cluster& cluster, const SimulatedMesh& mesh, const SimulatedJob& job);

  PartTime layer() const;
  PartTime embedding() const;
  /// The output layer and the loss.
  PartTime head() const;
  /// The optimizer's step for a number of parameters.
  double update_s(double parameters) const;
  /// Share of a device that the rank has: below 1 if ranks take turns, above 1 if a rank has several cores.
  double devices() const { return devices_; }

 private:
  double matmul_s(double elements, const std::string& dtype) const;
  double memory_s(double bytes) const;
  double attention_s() const;
  double elementwise_bytes() const;
  double all_reduce_s() const;
  double context_s(double attention_s) const;

  const TransformerShape& shape_;
  const Cluster& cluster_;
  const SimulatedMesh& mesh_;
  const SimulatedJob& job_;
  double devices_, tokens_, length_, tensor_;
};

}  // namespace bellows::train
