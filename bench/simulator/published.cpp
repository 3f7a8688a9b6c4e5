#include "bench/simulator/published.h"

#include <nlohmann/json.hpp>

#include "bellows/system/file.h"

namespace bellows::bench {

namespace {

train::SimulatedJob job_of(const nlohmann::json& row) {
  train::SimulatedJob job;
  job.batch = row.at("batch");
  job.length = row.at("length");
  job.micro_batches = row.value("micro_batches", 1);
  job.schedule = row.value("schedule", job.schedule);
  job.zero_stage = 3;
  job.recomputed = train::parse_recomputed(row.at("recomputed"));
  job.dtype = row.at("dtype");
  job.sequence_parallel = row.value("sequence_parallel", false);
  job.async_tensor = row.value("async_tensor", false);
  job.zigzag = row.value("zigzag", true);
  return job;
}

}  // namespace

std::vector<PublishedRow> simulate_published(const std::string& folder) {
  const auto file = nlohmann::json::parse(read_text_file(folder + "/published.json"));
  const train::Cluster cluster = train::read_cluster(folder + "/" + file.at("cluster").get<std::string>());
  std::vector<PublishedRow> rows;
  for (const nlohmann::json& row : file.at("rows")) {
    const auto shape = train::transformer_shape(folder + "/" + row.at("model").get<std::string>());
    PublishedRow next{.name = row.at("name"), .fitted = row.value("fitted", false), .eager = row.value("eager", false)};
    next.tokens_per_second = row.at("tokens_per_second");
    next.memory_gib = row.at("memory_gib");
    next.simulation = simulate(shape, cluster, train::parse_simulated_mesh(row.at("mesh")), job_of(row));
    rows.push_back(std::move(next));
  }
  return rows;
}

}  // namespace bellows::bench
