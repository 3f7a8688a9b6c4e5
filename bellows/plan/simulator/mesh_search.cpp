#include "bellows/plan/simulator/mesh_search.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "bellows/core/stats.h"

namespace bellows::train {

namespace {

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> result;
  for (int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) result.push_back(i);
  }
  return result;
}

/// Numbers of micro-batches to try.
std::vector<int64_t> micro_batch_counts(const SimulatedMesh& mesh, const SimulatedJob& job) {
  if (mesh.pipeline == 1) return {job.micro_batches};
  std::vector<int64_t> counts;
  for (int64_t per_stage = 1; per_stage <= 8; per_stage *= 2) {
    const int64_t count = per_stage * mesh.pipeline;
    if (job.batch % (mesh.data * mesh.shard * count) == 0) counts.push_back(count);
  }
  return counts;
}

bool is_better(const Simulation& a, const Simulation& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.time.total() < b.time.total() : a.memory.total() < b.memory.total();
}

class MeshSearcher {
 public:
  MeshSearcher(const TransformerShape& shape, const Cluster& cluster, const SimulatedJob& job)
      : shape_(shape), cluster_(cluster), job_(job) {}

  void add(const SimulatedMesh& mesh) {
    std::optional<Simulation> best;
    for (const int64_t count : micro_batch_counts(mesh, job_)) {
      SimulatedJob job = job_;
      job.micro_batches = count;
      const std::string problem = job_problem(shape_, mesh, job);
      if (problem.empty()) {
        const Simulation next = lowest_stage(mesh, job);
        if (!best || is_better(next, *best)) best = next;
      } else {
        problem_ = problem;
      }
    }
    if (best) candidates_.push_back(*best);
  }

  std::vector<Simulation> sorted() {
    TORCH_CHECK_VALUE(!candidates_.empty(), "search_meshes: no mesh is possible. ", problem_);
    std::stable_sort(candidates_.begin(), candidates_.end(), is_better);
    return std::move(candidates_);
  }

 private:
  /// Simulates the mesh with the lowest ZeRO stage that fits, or with the highest one.
  Simulation lowest_stage(const SimulatedMesh& mesh, SimulatedJob job) const {
    const int highest = shard_ranks(mesh) > 1 ? 3 : job.zero_stage;
    for (;; ++job.zero_stage) {
      Simulation result = simulate(shape_, cluster_, mesh, job);
      if (result.fits || job.zero_stage >= highest) return result;
    }
  }

  const TransformerShape& shape_;
  const Cluster& cluster_;
  const SimulatedJob& job_;
  std::vector<Simulation> candidates_;
  std::string problem_;
};

/// The part of the time that is longer than in `best` by the largest amount.
std::string largest_loss(const SimulatedTime& time, const SimulatedTime& best) {
  const std::pair<const char*, double> parts[] = {
      {"computation", time.compute_s - best.compute_s},
      {"recomputation", time.recomputed_s - best.recomputed_s},
      {"the optimizer's step", time.update_s - best.update_s},
      {"the exchange of the axis tensor", time.tensor_s - best.tensor_s},
      {"the exchange of the axis context", time.context_s - best.context_s},
      {"the exchange of gradients and parameters", time.data_s - best.data_s},
      {"the bubble of the pipeline", time.bubble_s - best.bubble_s}};
  const auto most = std::max_element(std::begin(parts), std::end(parts),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return c10::str(most->first, " takes ", format_seconds(most->second), " longer");
}

std::string search_reason(const MeshSearch& search) {
  const Simulation& best = search.candidates.front();
  if (!search.fits())
    return c10::str("No mesh fits. ", best.mesh.to_string(), " needs the least memory, ",
                    format_bytes(best.memory.total()), " of ", format_bytes(best.capacity),
                    ". Use more ranks, smaller micro-batches or recomputation.");
  std::string text =
      c10::str(best.mesh.to_string(), " is the fastest mesh that fits: ", format_seconds(best.time.total()),
               " per step, with ", format_bytes(best.memory.total()), " of ", format_bytes(best.capacity), ".");
  const auto slower = std::find_if(search.candidates.begin(), search.candidates.end(), [&](const Simulation& other) {
    return other.fits && other.time.total() > 1.01 * best.time.total();
  });
  if (slower != search.candidates.end())
    text += c10::str(" With ", slower->mesh.to_string(), ", a step takes ", format_seconds(slower->time.total()), ": ",
                     largest_loss(slower->time, best.time), ".");
  return text;
}

}  // namespace

MeshSearch search_meshes(const TransformerShape& shape, const Cluster& cluster, const SimulatedJob& job,
                         int64_t ranks) {
  TORCH_CHECK_VALUE(ranks >= 1 && ranks <= 1 << 16, "search_meshes: expected 1 to 65536 ranks, got ", ranks, ".");
  MeshSearcher searcher(shape, cluster, job);
  const int64_t most_tensor = cluster.shared ? ranks : cluster.devices_per_node;
  for (const int64_t tensor : divisors(ranks)) {
    if (tensor > most_tensor) continue;
    for (const int64_t pipeline : divisors(ranks / tensor)) {
      for (const int64_t context : divisors(ranks / tensor / pipeline))
        searcher.add(
            {.data = ranks / tensor / pipeline / context, .context = context, .tensor = tensor, .pipeline = pipeline});
    }
  }
  MeshSearch search{.candidates = searcher.sorted()};
  search.reason = search_reason(search);
  return search;
}

}  // namespace bellows::train
