#include "bellows/plan/simulator/simulated_job.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/train/recipe/rank_keys.h"

namespace bellows::train {

namespace {

constexpr const char* recomputed_names[] = {"nothing", "attention", "half", "blocks"};

constexpr std::pair<const char*, int64_t SimulatedMesh::*> mesh_axes[] = {{"data", &SimulatedMesh::data},
                                                                          {"shard", &SimulatedMesh::shard},
                                                                          {"context", &SimulatedMesh::context},
                                                                          {"tensor", &SimulatedMesh::tensor},
                                                                          {"pipeline", &SimulatedMesh::pipeline}};

std::string divisor_problem(const char* axis, int64_t ranks, const char* what, int64_t size) {
  if (size % ranks == 0) return "";
  return c10::str("The axis ", axis, " has ", ranks, " ranks, which must divide the ", what, ", ", size, ".");
}

std::string setting_problem(const SimulatedJob& job) {
  if (job.batch < 1 || job.micro_batches < 1 || job.length < 0 || job.stages_per_rank < 1 || job.threads < 0)
    return c10::str("Expected a batch, micro-batches and stages per rank of at least 1, got ", job.batch, ", ",
                    job.micro_batches, " and ", job.stages_per_rank, ".");
  if (job.zero_stage < 0 || job.zero_stage > 3)
    return c10::str("Expected a ZeRO stage from 0 to 3, got ", job.zero_stage, ".");
  const std::vector<std::string> dtypes = {"fp32", "bf16", "fp8"};
  const std::vector<std::string>& schedules = parallel::schedule_names();
  if (std::find(dtypes.begin(), dtypes.end(), job.dtype) == dtypes.end())
    return c10::str("Expected the dtype fp32, bf16 or fp8, got \"", job.dtype, "\".");
  if (std::find(schedules.begin(), schedules.end(), job.schedule) == schedules.end())
    return c10::str("Expected the schedule gpipe, 1f1b, interleaved or zero_bubble, got \"", job.schedule, "\".",
                    did_you_mean(job.schedule, schedules));
  return "";
}

std::string pipeline_problem(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job) {
  if (mesh.pipeline == 1) return "";
  const bool interleaved = job.schedule == "interleaved";
  const int64_t stages = mesh.pipeline * (interleaved ? job.stages_per_rank : 1);
  if (stages > shape.layers)
    return c10::str("A pipeline of ", stages, " stages needs as many layers, but the model has ", shape.layers, ".");
  if (interleaved && job.micro_batches % mesh.pipeline != 0)
    return c10::str("The schedule interleaved needs a multiple of ", mesh.pipeline, " micro-batches, got ",
                    job.micro_batches, ".");
  return "";
}

}  // namespace

std::string SimulatedMesh::to_string() const {
  std::string text;
  for (const auto& [name, axis] : mesh_axes) {
    if (this->*axis > 1) text += c10::str(text.empty() ? "" : ", ", name, ": ", this->*axis);
  }
  return "{" + (text.empty() ? "data: 1" : text) + "}";
}

SimulatedMesh parse_simulated_mesh(const std::string& text) {
  const std::vector<comm::MeshAxis> axes = parse_mesh(text, "mesh");
  SimulatedMesh mesh;
  for (const auto& [name, axis] : mesh_axes) mesh.*axis = axis_size(axes, name);
  return mesh;
}

std::string to_string(Recomputed recomputed) {
  return recomputed_names[static_cast<size_t>(recomputed)];
}

Recomputed parse_recomputed(const std::string& text) {
  const std::vector<std::string> names(std::begin(recomputed_names), std::end(recomputed_names));
  const auto found = std::find(names.begin(), names.end(), text);
  TORCH_CHECK_VALUE(found != names.end(), "recompute: expected nothing, attention, half or blocks, got \"", text, "\".",
                    did_you_mean(text, names));
  return static_cast<Recomputed>(found - names.begin());
}

std::string job_problem(const TransformerShape& shape, const SimulatedMesh& mesh, const SimulatedJob& job) {
  std::string problem = setting_problem(job);
  const auto check = [&problem](const std::string& next) {
    if (problem.empty()) problem = next;
  };
  const int64_t length = length_of(shape, job);
  if (length < 1) check("Expected a length of at least 1 token.");
  if (!problem.empty()) return problem;
  const int64_t parts = mesh.data * mesh.shard * job.micro_batches;
  if (job.batch % parts != 0)
    check(c10::str("A batch of ", job.batch, " samples cannot be divided into ", job.micro_batches,
                   " micro-batches on ", mesh.data * mesh.shard, " ranks. Choose a multiple of ", parts, "."));
  check(divisor_problem("tensor", mesh.tensor, "attention heads", shape.heads));
  check(divisor_problem("tensor", mesh.tensor, "heads of keys and values", shape.kv_heads));
  check(divisor_problem("tensor", mesh.tensor, "inner width", shape.inner));
  const int64_t chunks = mesh.context * (job.zigzag && mesh.context > 1 ? 2 : 1);
  if (length % chunks != 0)
    check(c10::str("The axis context divides the length, ", length, ", into ", chunks, " chunks. Choose a multiple of ",
                   chunks, "."));
  check(pipeline_problem(shape, mesh, job));
  return problem;
}

}  // namespace bellows::train
