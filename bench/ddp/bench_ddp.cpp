// Data parallel training on two or more ranks of one thread each against Python's DistributedDataParallel,
// ZeroRedundancyOptimizer and fully_shard (FSDP2), over Gloo, from the same libtorch.
#include <torch/torch.h>

#include <cmath>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string_view>

#include "bellows/optim/optimizers.h"
#include "bellows/parallel/data_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
#include "bench/ddp/side.h"
#include "bench/ddp/tasks.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

constexpr double learning_rate = 1e-4;
int ranks = 2;  // --ranks

/// All ranks of one side, in a variant at a time.
class Side {
 public:
  Side(std::string name, const std::vector<std::string>& command)
      : name_(std::move(name)), process_(with_world(command, ranks)) {}

  std::vector<double> losses(const std::string& variant, int64_t count) {
    return process_.ask_numbers("losses " + variant + " " + std::to_string(count));
  }
  double resident_bytes(const std::string& variant) { return process_.ask_numbers("resident " + variant).front(); }
  double peak_bytes(const std::string& variant) { return process_.ask_numbers("peak " + variant).front(); }
  Contestant as_contestant(const std::string& variant) { return process_.as_contestant(name_ + ", " + variant); }

 private:
  std::string name_;
  PeerProcess process_;
};

/// The whole batch in this process, with as many threads as there are ranks: as one model, or as replicas.
class OneProcess {
 public:
  OneProcess(const std::string& task, int replicas)
      : task_(make_task(task, 0, 1)),
        data_parallel_(task_.model, task_.make, std::vector<c10::Device>(static_cast<size_t>(replicas), c10::kCPU)),
        optimizer_(task_.model.parameters(), optim::AdamWOptions{.lr = learning_rate}) {}

  double step() {
    optimizer_.zero_grad();
    const at::Tensor loss =
        data_parallel_.backward({task_.x, task_.y}, [this](const Model& replica, const std::vector<at::Tensor>& part) {
          return task_.loss(replica.forward(part[0]), part[1]);
        });
    optimizer_.step();
    return loss.item<double>();
  }

  std::vector<double> losses(int64_t count) {
    std::vector<double> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(step());
    return result;
  }

  Contestant as_contestant(std::string name) {
    return timed_contestant(std::move(name), [this] { step(); });
  }

 private:
  Task task_;
  parallel::DataParallel data_parallel_;
  optim::AdamW optimizer_;
};

struct ParameterBytes {
  double all = 0, largest = 0;
};

ParameterBytes parameter_bytes(const std::string& task) {
  ParameterBytes bytes;
  for (const at::Tensor& parameter : make_task(task, 0, 1).model.parameters()) {
    const auto own = static_cast<double>(parameter.nbytes());
    bytes.all += own;
    bytes.largest = std::max(bytes.largest, own);
  }
  return bytes;
}

struct Work {
  std::string task, title;
};

Row measure(const Work& work, const std::string& ours_as, const std::string& theirs_as, const Options& options,
            Side& ours, Side* theirs) {
  constexpr int64_t checked = 5;  // by then every task's loss has fallen
  const std::string mine = work.task + "." + ours_as, peers = work.task + "." + theirs_as;
  const std::vector<double> losses = ours.losses(mine, checked);
  bool equal = std::isfinite(losses.back()) && losses.back() < losses.front();
  std::vector<Contestant> sides = {ours.as_contestant(ours_as)};
  if (theirs) {
    const double tolerance = ours_as.ends_with("bf16") ? 2e-2 : 2e-3;  // bf16 has 8 significant bits
    equal = close(losses, theirs->losses(peers, checked), tolerance) && equal;
    sides.push_back(theirs->as_contestant(theirs_as));
  }
  const Comparison comparison = compare(sides, steps_plan(options));
  return time_row(work.title + ", " + ours_as + " against " + theirs_as, "time per step", "ms", comparison, equal);
}

std::vector<std::string> their_command(const Options& options) {
  return {options.peer_python, source_dir() + "/bench/peers/ddp.py", "--lr", std::to_string(learning_rate)};
}

/// One process with replicas on threads, and one model on the same threads, against ranks (DDP).
Row measure_one_process(const Work& work, const Options& options, Side& ours) {
  OneProcess replicas(work.task, ranks), alone(work.task, 1);
  const int64_t checked = options.quick ? 2 : 5;
  // Batch norm sees each part alone in replicas as in ranks.
  const bool equal = close(replicas.losses(checked), ours.losses(work.task + ".ddp", checked), 2e-3);
  alone.losses(1);
  const Comparison comparison = compare({ours.as_contestant("DDP, ranks"), replicas.as_contestant("DP, replicas"),
                                         alone.as_contestant("one model, threads")},
                                        steps_plan(options));
  return time_row(work.title + ", DDP against one process", "time per step", "ms", comparison, equal);
}

/// The key reproducible_ranks in the trainer, against DDP in the trainer in other processes. Below 1, the ratio is its cost.
Row measure_reproducible(const Work& work, const std::string& strategy, const Options& options, Side& ours) {
  Side plain("trainer", our_command());
  Row row = measure(work, strategy, "trainer", options, ours, &plain);
  row.work = work.title + ", " + strategy + " against DDP in the trainer";
  return row;
}

/// ZeRO-3 with shards and state in files, against ZeRO-3 in memory. Below 1, the ratio is the cost of the files.
Row measure_files(const Work& work, const Options& options, Side& ours) {
  Side memory("in memory", our_command());
  return measure(work, "zero3_files", "zero3", options, ours, &memory);
}

/// Peak bytes of a rank against those of one process that takes the rank's part of the batch, less what docs/strategies.md
/// says that the ranks share. For ZeRO-2 that is a bound: how many buckets are on their way at the peak is chance.
Row measure_peak(const Work& work, const std::string& strategy, Side& ours) {
  const double share = 1 - 1.0 / ranks;
  const ParameterBytes parameters = parameter_bytes(work.task);
  const double alone = ours.peak_bytes(work.task + ".alone"), measured = ours.peak_bytes(work.task + "." + strategy);
  double expected = alone;
  if (strategy != "ddp") expected -= share * 2 * parameters.all;  // AdamW's state
  const double bucket = std::max(static_cast<double>(parallel::ShardOptions().bucket_bytes), parameters.largest);
  if (strategy == "zero2") expected += 4 * bucket - share * parameters.all;
  Row row{
      .work = work.title + ", " + strategy, .metric = "peak memory of a rank", .unit = "MB", .ours = measured / 1e6};
  row.limit = expected / 1e6;
  row.equal = strategy == "zero2" ? measured <= expected : std::abs(measured / expected - 1) <= 0.05;
  std::ostringstream note;
  note << std::fixed << std::setprecision(1) << (strategy == "zero2" ? "at most " : "in theory ") << expected / 1e6
       << " MB; the measured peak differs by " << 100 * (measured / expected - 1) << " %";
  row.note = note.str();
  return row;
}

/// The memory of a rank's process, as the system counts it, in new processes.
Row measure_resident(const Work& work, const std::string& ours_as, const std::string& theirs_as,
                     const Options& options) {
  Row row{.work = work.title + ", " + ours_as + " against " + theirs_as + ", resident memory",
          .metric = "peak memory of a rank",
          .unit = "MB"};
  row.ours = Side("ours", our_command()).resident_bytes(work.task + "." + ours_as) / 1e6;
  if (options.peer_python.empty()) return row;
  const double theirs = Side("Python", their_command(options)).resident_bytes(work.task + "." + theirs_as) / 1e6;
  std::ostringstream note;
  note << std::fixed << std::setprecision(1) << "Python: " << theirs << " MB; ratio " << std::setprecision(2)
       << row.ours / theirs;
  row.note = note.str();
  row.equal = true;
  return row;
}

int run(const Options& options) {
  ranks = std::stoi(options.extra.at("ranks"));
  Report report("ddp", options);
  Side ours("ours", our_command());
  std::optional<Side> theirs;
  if (!options.peer_python.empty()) theirs.emplace("Python", their_command(options));
  Side* peer = theirs ? &*theirs : nullptr;
  const auto title = [](const char* model, int batch, const char* samples) {
    return std::string(model) + ", " + std::to_string(ranks) + " ranks x " + std::to_string(batch / ranks) + samples;
  };
  const std::vector<Work> all = {{"resnet18", title("ResNet-18", 32, " images of 64x64")},
                                 {"bert", title("BERT of 20 M", 8, " sequences of 128")},
                                 {"mlp", title("MLP of 5 k", 32, " samples")}};
  const auto add = [&](const std::string& name, const std::function<Row()>& row) {
    if (name.find(options.extra.at("row")) != std::string::npos && report.has_time_for(name)) report.add(row());
  };
  for (const Work& work : all) {
    const auto against = [&](const char* strategy, const char* theirs_as) {
      add(work.title + ", " + strategy + " against " + theirs_as,
          [&] { return measure(work, strategy, theirs_as, options, ours, peer); });
    };
    against("ddp", "ddp");
    against("ddp_compiled", "ddp");
    against("ddp_compiled", "ddp_compiled");
    if (work.task != "mlp") {
      against("zero2_compiled", "zero");
      against("zero1", "zero");
      against("zero2", "zero");
      against("zero3", "fsdp");
      against("zero3_keep", "fsdp_keep");
      against("zero3_accumulate", "fsdp_accumulate");
      if (work.task == "bert") against("zero3_bf16", "fsdp_bf16");
      add(work.title + ", zero3, resident memory", [&] { return measure_resident(work, "zero3", "fsdp", options); });
      add(work.title + ", zero3_files against zero3", [&] { return measure_files(work, options, ours); });
      for (const char* strategy : {"ddp", "zero1", "zero2"})
        add(work.title + ", " + strategy + ", memory", [&] { return measure_peak(work, strategy, ours); });
    }
    add(work.title + ", reproducible against DDP",
        [&] { return measure_reproducible(work, "reproducible", options, ours); });
    // Batch norm computes its statistics per part, so with more parts than ranks the losses differ from those of DDP.
    if (work.task == "bert")
      add(work.title + ", reproducible_2 against DDP",
          [&] { return measure_reproducible(work, "reproducible_2", options, ours); });
    add(work.title + ", one process", [&] { return measure_one_process(work, options, ours); });
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--serve") return serve_rank(learning_rate);
  return bench_main(argc, argv,
                    "Times a training step with AdamW on ranks of one thread each: DDP, ZeRO-1, ZeRO-2 and ZeRO-3, "
                    "also compiled, against\nPython's DistributedDataParallel, also with torch.compile, "
                    "ZeroRedundancyOptimizer and fully_shard (FSDP2) over Gloo.\nAlso compares DDP with replicas and "
                    "with one model in one process, and the recipe key reproducible_ranks with DDP. Before that, the "
                    "losses of the first steps are\ncompared. --row: "
                    "part of the names of the rows to measure, such as zero3. --ranks: number of ranks.",
                    run, {{"row", ""}, {"ranks", "2"}});
}
