#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "bellows/core/stats.h"
#include "bellows/plan/simulator/cluster_measurement.h"
#include "bellows/plan/simulator/mesh_search.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usable.h"

namespace bellows::cli {

namespace {

using train::Simulation;

void check_simulate(const SimulateArguments& arguments) {
  if (arguments.model.empty())
    throw UsageError("simulate: the model is missing. Pass a name such as gpt2, or a config.json.");
  if (arguments.mesh.empty() == (arguments.ranks == 0))
    throw UsageError("simulate: expected exactly one of --mesh and --ranks.");
}

std::string part_line(const char* name, const std::string& amount, double share) {
  return "  " + pad_right(name, 40) + pad_left(amount, 14) + pad_left(number("%.1f %%", 100 * share), 11) + "\n";
}

std::string time_line(const char* name, double seconds, double total) {
  return seconds <= 0 ? "" : part_line(name, format_seconds(seconds), seconds / total);
}

std::string time_text(const train::SimulatedTime& time) {
  const double total = time.total();
  return "Time of a step:\n" + time_line("forward and backward", time.compute_s, total) +
         time_line("recomputed activations", time.recomputed_s, total) + time_line("optimizer", time.update_s, total) +
         time_line("exchange of tensor", time.tensor_s, total) +
         time_line("exchange of context", time.context_s, total) +
         time_line("exchange of data and shard", time.data_s, total) +
         time_line("bubble of the pipeline", time.bubble_s, total) + time_line("total", total, total);
}

std::string memory_text(const Simulation& simulation) {
  const train::SimulatedMemory& memory = simulation.memory;
  const auto line = [&](const char* name, double bytes) {
    return part_line(name, format_bytes(bytes), bytes / memory.total());
  };
  return "Memory of the rank that needs most:\n" + line("parameters", memory.parameters) +
         line("gradients", memory.gradients) + line("optimizer state", memory.state) +
         line("activations", memory.activations) + line("working memory", memory.working) +
         line("total", memory.total());
}

std::string throughput_text(const Simulation& simulation) {
  std::string text = c10::str(simulation.fits ? "The step fits into " : "The step does not fit into ",
                              format_bytes(simulation.capacity),
                              " per rank. Throughput: ", number("%.4g", simulation.samples_per_second), " samples/s, ",
                              number("%.4g", simulation.tokens_per_second_per_rank), " tokens/s per rank");
  if (std::isfinite(simulation.model_flops_utilization))
    text += ", " + number("%.1f %%", 100 * simulation.model_flops_utilization) + " of peak operations";
  return wrapped(text + ".");
}

std::string heading_of(const SimulateArguments& arguments, const train::TransformerShape& shape,
                       const train::Cluster& cluster) {
  const train::SimulatedJob& job = arguments.job;
  return wrapped(c10::str(shape.name, ": ", shape.parameters(), " parameters, batch × length ", job.batch, " × ",
                          train::length_of(shape, job), ", ", job.dtype, ", on ", cluster.name)) +
         "\n";
}

constexpr size_t mesh_width = 37;

std::string search_row(const std::string& zero, const std::string& micro_batches, const std::string& step,
                       const std::string& memory, const std::string& fits) {
  return pad_left(zero, 5) + pad_left(micro_batches, 7) + pad_left(step, 14) + pad_left(memory, 11) +
         pad_left(fits, 5) + "\n";
}

/// A long mesh takes a line of its own.
std::string candidate_line(const Simulation& simulation) {
  const std::string zero = simulation.job.zero_stage == 0 ? "-" : std::to_string(simulation.job.zero_stage);
  std::string mesh = "  " + simulation.mesh.to_string();
  if (mesh.size() > mesh_width) mesh += "\n" + std::string(mesh_width, ' ');
  return pad_right(mesh, mesh_width) +
         search_row(zero, std::to_string(simulation.job.micro_batches), format_seconds(simulation.time.total()),
                    format_bytes(simulation.memory.total()), simulation.fits ? "yes" : "no");
}

std::string search_text(const train::MeshSearch& search) {
  constexpr size_t most_rows = 20;
  std::string text = pad_right("  mesh", mesh_width) + search_row("ZeRO", "micro", "step", "memory", "fits");
  const size_t shown = std::min(search.candidates.size(), most_rows);
  for (size_t i = 0; i < shown; ++i) text += candidate_line(search.candidates[i]);
  if (shown < search.candidates.size())
    text += c10::str("  … and ", search.candidates.size() - shown, " more, which --json lists\n");
  return text + "\n" + wrapped(search.reason);
}

nlohmann::ordered_json simulation_json(const Simulation& simulation) {
  using Json = nlohmann::ordered_json;
  const train::SimulatedTime& time = simulation.time;
  const train::SimulatedMemory& memory = simulation.memory;
  const train::SimulatedMesh& mesh = simulation.mesh;
  Json json;
  json["mesh"] = {{"data", mesh.data},
                  {"shard", mesh.shard},
                  {"context", mesh.context},
                  {"tensor", mesh.tensor},
                  {"pipeline", mesh.pipeline}};
  json["zero_stage"] = simulation.job.zero_stage;
  json["micro_batches"] = simulation.job.micro_batches;
  json["seconds"] = {{"total", time.total()},      {"compute", time.compute_s}, {"recomputed", time.recomputed_s},
                     {"optimizer", time.update_s}, {"tensor", time.tensor_s},   {"context", time.context_s},
                     {"data", time.data_s},        {"bubble", time.bubble_s}};
  json["bytes"] = {{"total", memory.total()}, {"parameters", memory.parameters},   {"gradients", memory.gradients},
                   {"state", memory.state},   {"activations", memory.activations}, {"working", memory.working}};
  json["capacity_bytes"] = simulation.capacity;
  json["fits"] = simulation.fits;
  json["samples_per_second"] = simulation.samples_per_second;
  json["tokens_per_second_per_rank"] = simulation.tokens_per_second_per_rank;
  json["model_flops_utilization"] = number_or_null<Json>(simulation.model_flops_utilization);
  return json;
}

void print_mesh(const SimulateArguments& arguments, const train::TransformerShape& shape,
                const train::Cluster& cluster) {
  const train::SimulatedMesh mesh = usable([&] { return train::parse_simulated_mesh(arguments.mesh); });
  if (mesh.shard > 1 && arguments.job.zero_stage == 0)
    throw UsageError("simulate: the axis shard needs --zero 1, 2 or 3. For DDP, use the axis data.");
  const Simulation simulation = usable([&] { return simulate(shape, cluster, mesh, arguments.job); });
  if (arguments.json != "-")
    print_result(heading_of(arguments, shape, cluster) + "Mesh: " + mesh.to_string() + "\n\n" +
                 time_text(simulation.time) + "\n" + memory_text(simulation) + "\n" + throughput_text(simulation));
  write_json(arguments.json, json_text(simulation_json(simulation)));
}

void print_search(const SimulateArguments& arguments, const train::TransformerShape& shape,
                  const train::Cluster& cluster) {
  const train::MeshSearch search =
      usable([&] { return train::search_meshes(shape, cluster, arguments.job, arguments.ranks); });
  if (arguments.json != "-") print_result(heading_of(arguments, shape, cluster) + search_text(search));
  nlohmann::ordered_json json = {{"ranks", arguments.ranks}, {"reason", search.reason}};
  json["choice"] = search.fits() ? simulation_json(search.candidates.front()) : nlohmann::ordered_json(nullptr);
  json["candidates"] = nlohmann::ordered_json::array();
  for (const Simulation& candidate : search.candidates) json["candidates"].push_back(simulation_json(candidate));
  write_json(arguments.json, json_text(json));
}

}  // namespace

int run_simulate(const SimulateArguments& given) {
  if (given.measure) {
    print_result(to_yaml(train::measure_cluster()));
    return exit_done;
  }
  check_simulate(given);
  SimulateArguments arguments = given;
  arguments.job.recomputed = usable([&] { return train::parse_recomputed(given.recompute); });
  arguments.job.zigzag = !given.contiguous;
  check_output_file(arguments.json);
  const train::TransformerShape shape = usable([&] { return train::transformer_shape(arguments.model); });
  const train::Cluster cluster = arguments.cluster.empty()
                                     ? train::measure_cluster()
                                     : usable([&] { return train::read_cluster(arguments.cluster); });
  if (arguments.mesh.empty()) {
    print_search(arguments, shape, cluster);
  } else {
    print_mesh(arguments, shape, cluster);
  }
  return exit_done;
}

}  // namespace bellows::cli
