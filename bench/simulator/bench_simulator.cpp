// Predicted against measured training steps on 2, 4 and 8 ranks of one thread each on this machine, and against published
// figures for 8 to 512 GPUs.
#include <cmath>
#include <optional>
#include <string_view>

#include "bellows/plan/simulator/cluster_measurement.h"
#include "bench/simulator/published.h"
#include "bench/simulator/side.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

train::TransformerShape gpt_shape() {
  train::TransformerShape shape{.name = "gpt",
                                .layers = gpt_layers,
                                .width = gpt_width,
                                .heads = gpt_heads,
                                .kv_heads = gpt_heads,
                                .head_width = gpt_width / gpt_heads,
                                .inner = 4 * gpt_width,
                                .vocabulary = gpt_vocabulary,
                                .positions = gpt_length};
  shape.dropout = false;
  return shape;
}

train::SimulatedJob gpt_job(int64_t sequences) {
  train::SimulatedJob job;
  job.batch = sequences;
  job.dtype = "fp32";
  job.threads = 1;
  return job;
}

train::Simulation simulate_strategy(const std::string& strategy, int ranks, const train::Cluster& cluster) {
  train::SimulatedJob job = gpt_job(gpt_sequences);
  train::SimulatedMesh mesh;
  (strategy == "tensor" ? mesh.tensor : strategy == "pipeline" ? mesh.pipeline : mesh.data) = ranks;
  if (strategy == "pipeline") job.micro_batches = pipeline_micro_batches(ranks);
  if (strategy.starts_with("zero")) job.zero_stage = strategy[4] - '0';
  return simulate(gpt_shape(), cluster, mesh, job);
}

bool starts_to_learn(PeerProcess& ranks, const std::string& strategy) {
  const std::vector<double> losses = ranks.ask_numbers("losses " + strategy + " 5");
  return std::isfinite(losses.back()) && losses.back() < losses.front();
}

/// Measures this machine. One rank per core then runs steps without exchange, to which the rates are fitted.
train::Cluster calibrated_cluster(const Options& options) {
  const train::Cluster cluster = train::measure_cluster();
  const auto cores = static_cast<int>(cluster.devices_per_node);
  PeerProcess ranks(with_world(our_command(), cores));
  starts_to_learn(ranks, "alone");
  const double seconds = compare({ranks.as_contestant("alone")}, steps_plan(options)).ours().seconds();
  return calibrate(cluster, gpt_shape(), {}, gpt_job(gpt_sequences / cores), seconds);
}

std::string error_note(double error) {
  return c10::str("error of the prediction: ", error > 0 ? "+" : "", std::round(1000 * error) / 10, " %");
}

Row measure(const std::string& strategy, int ranks, const Options& options, const train::Cluster& cluster,
            PeerProcess& process) {
  const bool learns = starts_to_learn(process, strategy);
  const Comparison comparison = compare({process.as_contestant(strategy)}, steps_plan(options));
  Row row = time_row(c10::str("GPT of 8 M, ", gpt_sequences, " sequences, ", strategy, ", ", ranks, " ranks"),
                     "time per step", "ms", comparison, learns);
  const double predicted = simulate_strategy(strategy, ranks, cluster).time.total();
  row.peers.emplace_back("predicted", 1000 * predicted);
  row.note = error_note(predicted / comparison.ours().seconds() - 1);
  return row;
}

void add_published(Report& report, const std::string& wanted) {
  for (const PublishedRow& published : simulate_published(source_dir() + "/bench/simulator")) {
    Row row{.work = "published: Llama 3.1 " + published.name, .metric = "predicted speed", .unit = "tokens/s"};
    if (row.work.find(wanted) == std::string::npos) continue;
    row.ours = published.simulation.tokens_per_second_per_rank;
    row.peers.emplace_back("published", published.tokens_per_second);
    row.equal = true;
    row.note = error_note(published.speed_error()) + (published.fitted ? " (fitted)" : "") +
               "; of the memory: " + c10::str(std::round(1000 * published.memory_error()) / 10, " %");
    report.add(std::move(row));
  }
}

int run(const Options& options) {
  Report report("simulator", options);
  const std::string wanted = options.extra.at("row");
  add_published(report, wanted);
  std::optional<train::Cluster> cluster;
  for (const int ranks : {2, 4, 8}) {
    std::optional<PeerProcess> process;
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3", "tensor", "pipeline"}) {
      const std::string name = c10::str(strategy, ", ", ranks, " ranks");
      if (name.find(wanted) == std::string::npos || !report.has_time_for(name)) continue;
      if (!cluster) cluster = calibrated_cluster(options);
      if (!process) process.emplace(with_world(our_command(), ranks));
      report.add(measure(strategy, ranks, options, *cluster, *process));
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--serve") return serve_simulated_rank();
  return bench_main(
      argc, argv,
      "Compares predictions of the simulator with published figures, and with training steps of a GPT on 2, 4 and 8 "
      "ranks of\n"
      "one thread each: DDP, ZeRO, tensor and pipeline parallelism. The rates of this machine are measured, and fitted "
      "to\n"
      "steps without exchange. --row: part of the names of the rows, such as \"pipeline, 4\" or \"published\".",
      run, {{"row", ""}});
}
