#include "bellows/plan/simulator/simulator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bellows/core/stats.h"
#include "bellows/parallel/pipeline/timeline.h"
#include "bellows/plan/simulator/collective_cost.h"
#include "bellows/plan/simulator/layer_time.h"

namespace bellows::train {

namespace {

constexpr double gradient_element_bytes = 4;

parallel::PipelineSchedule schedule_of(const SimulatedMesh& mesh, const SimulatedJob& job) {
  return parallel::named_schedule(mesh.pipeline == 1 ? "1f1b" : job.schedule, static_cast<int>(mesh.pipeline),
                                  static_cast<int>(job.micro_batches), static_cast<int>(job.stages_per_rank));
}

/// Divides the layers evenly. The first stages have one more if they cannot be divided.
std::vector<int64_t> layers_of_stages(int64_t layers, int stages) {
  std::vector<int64_t> result(static_cast<size_t>(stages), layers / stages);
  std::for_each_n(result.begin(), layers % stages, [](int64_t& count) { ++count; });
  return result;
}

/// Simulates one step.
class StepSimulator {
 public:
  StepSimulator(const TransformerShape& shape, const Cluster& cluster, const SimulatedMesh& mesh,
                const SimulatedJob& job)
      : shape_(shape),
        cluster_(cluster),
        mesh_(mesh),
        job_(job),
        schedule_(schedule_of(mesh, job)),
        layers_(layers_of_stages(shape.layers, schedule_.stages())),
        times_(shape, cluster, mesh, job),
        layer_(times_.layer()),
        parameters_(parameters_per_rank(shape, mesh, schedule_, layers_)) {}

  SimulatedTime time() const {
    SimulatedTime time;
    const double ranks = static_cast<double>(mesh_.pipeline), micro_batches = static_cast<double>(job_.micro_batches);
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const PartTime part = stage_time(stage);
      PassTime both = part.forward;
      both += part.backward;
      time.compute_s += both.compute_s * micro_batches / ranks;
      time.recomputed_s += part.recomputed.compute_s * micro_batches / ranks;
      time.tensor_s += (both.tensor_s + part.recomputed.tensor_s) * micro_batches / ranks;
      time.context_s += (both.context_s + part.recomputed.context_s) * micro_batches / ranks;
    }
    const double busy = time.compute_s + time.recomputed_s + time.tensor_s + time.context_s;
    // Ranks that share cores do not take turns with ranks that wait.
    if (mesh_.pipeline > 1) time.bubble_s = std::max(0.0, pipeline_s() - busy);
    time.data_s = exchange_s();
    time.update_s = times_.update_s(parameters_ / (job_.zero_stage >= 1 ? static_cast<double>(shard_ranks(mesh_)) : 1));
    return time;
  }

  SimulatedMemory memory() const { return simulate_memory(shape_, mesh_, job_, schedule_, layers_); }

 private:
  PartTime stage_time(int stage) const {
    const auto count = static_cast<double>(layers_[static_cast<size_t>(stage)]);
    PartTime time = {layer_.forward * count, layer_.recomputed * count, layer_.backward * count};
    const auto add = [&time](const PartTime& part) {
      time.forward += part.forward;
      time.backward += part.backward;
    };
    if (stage == 0) add(times_.embedding());
    if (stage + 1 == schedule_.stages()) add(times_.head());
    return time;
  }

  /// The length of the schedule if each rank has a device.
  double pipeline_s() const {
    const double device = std::min(1.0, times_.devices());
    parallel::PipelineTimes times;
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const PartTime part = stage_time(stage);
      const double again = device * part.recomputed.total(), half = device * part.backward.total() / 2;
      times.stages.push_back({.forward_s = device * part.forward.total(),
                              .backward_s = again + 2 * half,
                              .backward_input_s = again + half,
                              .backward_weight_s = half});
    }
    const int64_t stride = mesh_.ranks() / mesh_.pipeline;
    const double divided = job_.sequence_parallel ? static_cast<double>(mesh_.tensor) : 1;
    const double bytes =
        micro_tokens(shape_, mesh_, job_) * static_cast<double>(shape_.width) * element_bytes(job_) / divided;
    ClusterLink link = ring_link(cluster_, mesh_.pipeline, stride, mesh_.ranks());
    if (!cluster_.shared && mesh_.ranks() > cluster_.devices_per_node) link = cluster_.between;  // two ranks, one link
    times.transfer_s = send_seconds(link, bytes);
    return parallel::plan_timeline(schedule_, times).length_s();
  }

  /// The part of an exchange that computation does not hide.
  /// Params: last – the part that no computation can hide
  double exposed(double exchange_s, double last_s, double compute_s) const {
    return std::max(last_s, exchange_s - cluster_.overlap * compute_s);
  }

  /// Gradients and parameters of the axes data, shard and context.
  double exchange_s() const {
    const int64_t replicas = mesh_.data * mesh_.shard * mesh_.context, shards = shard_ranks(mesh_);
    if (replicas == 1) return 0;
    const ClusterLink all = ring_link(cluster_, replicas, mesh_.tensor, mesh_.ranks());
    if (job_.zero_stage == 0 || shards == 1) {
      const double exchange = all_reduce_seconds(all, replicas, gradient_element_bytes * parameters_);
      return hidden_in_backward(exchange);
    }
    const ClusterLink link = ring_link(cluster_, shards, mesh_.tensor, mesh_.ranks());
    return sharded_s(link, shards, average_copies_s(replicas / shards, shards));
  }

  /// An exchange of all gradients that starts when the first ones are complete in the last backward.
  double hidden_in_backward(double exchange_s) const {
    if (mesh_.pipeline > 1) return exchange_s;
    const auto layers = static_cast<double>(shape_.layers);
    const double last = exchange_s * last_share();
    return exposed(exchange_s, last, (layer_.backward.total() + layer_.recomputed.total()) * layers);
  }

  /// The share of the parameters whose gradients are complete only at the end of backward: embedding and first layer.
  double last_share() const {
    const auto last = static_cast<double>(shape_.embedding_parameters() + shape_.layer_parameters());
    return std::min(1.0, last / static_cast<double>(shape_.parameters()));
  }

  /// Averages the gradients of a shard over all copies of the model.
  double average_copies_s(int64_t copies, int64_t shards) const {
    const ClusterLink link = ring_link(cluster_, copies, mesh_.tensor * shards, mesh_.ranks());
    return all_reduce_seconds(link, copies, gradient_element_bytes * parameters_ / static_cast<double>(shards));
  }

  /// Params: copies_s – exchange of gradients between the copies, which follows that within a copy
  double sharded_s(const ClusterLink& link, int64_t shards, double copies_s) const {
    const double whole = gather_seconds(link, shards, gradient_element_bytes * parameters_);
    const double reduce = whole + copies_s;
    if (job_.zero_stage < 3) {
      const double gather = whole;  // after the update
      if (job_.zero_stage == 1) return hidden_in_backward(reduce + whole) + gather;
      const double passes = mesh_.pipeline > 1 ? 1 : static_cast<double>(job_.micro_batches);
      return passes * hidden_in_backward(reduce) + gather;
    }
    const double gather = gather_seconds(link, shards, element_bytes(job_) * parameters_);
    if (mesh_.pipeline > 1) return gather + reduce;  // once per step
    const auto layers = static_cast<double>(shape_.layers), passes = static_cast<double>(job_.micro_batches);
    const double forward = exposed(gather, gather * last_share(), layer_.forward.total() * layers);
    const double backward_s = (layer_.backward.total() + layer_.recomputed.total()) * layers;
    const double again = job_.reshard_after_forward ? gather : 0;
    return passes * (forward + exposed(again + reduce, reduce * last_share(), backward_s));
  }

  const TransformerShape& shape_;
  const Cluster& cluster_;
  const SimulatedMesh& mesh_;
  const SimulatedJob& job_;
  parallel::PipelineSchedule schedule_;
  std::vector<int64_t> layers_;
  LayerTimes times_;
  PartTime layer_;
  double parameters_;
};

Cluster with_rates_scaled(Cluster cluster, double factor) {
  for (auto& [dtype, flops] : cluster.flops) flops *= factor;
  cluster.memory_bytes_per_second *= factor;
  return cluster;
}

/// Operations of forward and backward for one token.
double model_operations(const TransformerShape& shape, const SimulatedJob& job) {
  const auto head = static_cast<double>(shape.predicts_tokens ? shape.vocabulary * shape.width : 0);
  return 6 * (static_cast<double>(shape.layers * shape.layer_matrices()) + head) +
         12 * static_cast<double>(shape.layers * shape.query_width()) * static_cast<double>(length_of(shape, job));
}

}  // namespace

Simulation simulate(const TransformerShape& shape, const Cluster& cluster, const SimulatedMesh& mesh,
                    const SimulatedJob& job) {
  const std::string problem = job_problem(shape, mesh, job);
  TORCH_CHECK_VALUE(problem.empty(), "simulate: ", problem);
  const StepSimulator simulator(shape, cluster, mesh, job);
  Simulation result{.mesh = mesh, .job = job, .time = simulator.time(), .memory = simulator.memory()};
  const auto ranks = static_cast<double>(mesh.ranks());
  result.capacity = cluster.memory_bytes * (cluster.shared ? static_cast<double>(cluster.devices_per_node) / ranks : 1);
  result.fits = result.memory.total() <= result.capacity;
  result.samples_per_second = static_cast<double>(job.batch) / result.time.total();
  result.tokens_per_second_per_rank = result.samples_per_second * static_cast<double>(length_of(shape, job)) / ranks;
  result.model_flops_utilization =
      cluster.shared ? std::numeric_limits<double>::quiet_NaN()
                     : result.tokens_per_second_per_rank * model_operations(shape, job) / cluster.flops.at(job.dtype);
  return result;
}

Cluster calibrate(const Cluster& cluster, const TransformerShape& shape, const SimulatedMesh& mesh,
                  const SimulatedJob& job, double seconds) {
  const auto seconds_at = [&](double factor) {
    return simulate(shape, with_rates_scaled(cluster, factor), mesh, job).time.total();
  };
  double slow = 1e-3, fast = 1e3;
  TORCH_CHECK_VALUE(seconds >= seconds_at(fast) && seconds <= seconds_at(slow), "calibrate: a step of ",
                    format_seconds(seconds), " is not possible with cluster ", cluster.name, ", whose prediction is ",
                    format_seconds(seconds_at(1)), ". Check its links and rates.");
  for (int i = 0; i < 60; ++i) {
    const double middle = std::sqrt(slow * fast);
    (seconds_at(middle) > seconds ? slow : fast) = middle;
  }
  return with_rates_scaled(cluster, fast);
}

}  // namespace bellows::train
