// Training steps of a model in stages on 2 or 4 ranks of one thread each: our schedules against those of Python's
// torch.distributed.pipelining, over Gloo, from the same libtorch.
#include <cmath>
#include <optional>
#include <string_view>

#include "bench/pipeline/side.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

/// All ranks of each side.
struct Sides {
  PeerProcess ours;
  std::optional<PeerProcess> python;

  Sides(int ranks, const Options& options) : ours(with_world(our_command(), ranks)) {
    if (!options.peer_python.empty())
      python.emplace(with_world({options.peer_python, source_dir() + "/bench/peers/pipeline.py"}, ranks));
  }
};

/// Python has no ZB-H1. Its zero-bubble schedule has two stages per rank.
Row measure(const std::string& schedule, int ranks, const Options& options, Sides& sides) {
  constexpr int64_t checked = 5;
  const std::string command = "losses " + schedule + " " + std::to_string(checked);
  const std::vector<double> losses = sides.ours.ask_numbers(command);
  bool equal = std::isfinite(losses.back()) && losses.back() < losses.front();
  std::vector<Contestant> contestants = {sides.ours.as_contestant(schedule)};
  if (sides.python) {
    equal = close(losses, sides.python->ask_numbers(command), 1e-4) && equal;
    contestants.push_back(sides.python->as_contestant("Python, " + schedule));
  }
  const PipelineSizes sizes;
  const std::string title = c10::str(sizes.blocks, " blocks of width ", sizes.width, ", ", sizes.tokens, " tokens in ",
                                     sizes.micro_batches, " micro-batches on ", ranks, " ranks, ", schedule);
  return time_row(title, "time per step", "ms", compare(contestants, steps_plan(options)), equal);
}

int run(const Options& options) {
  Report report("pipeline", options);
  for (const int ranks : {2, 4}) {
    std::optional<Sides> sides;
    for (const char* schedule : {"1f1b", "zero_bubble", "interleaved", "gpipe"}) {
      const std::string name = c10::str(schedule, " ", ranks, " ranks");
      if (name.find(options.extra.at("row")) == std::string::npos || !report.has_time_for(name)) continue;
      if (!sides) sides.emplace(ranks, options);
      report.add(measure(schedule, ranks, options, *sides));
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--serve") return serve_pipeline_rank({});
  return bench_main(
      argc, argv,
      "Times training steps of a model in stages on 2 and 4 ranks of one thread each, with four schedules, against "
      "Python's\ntorch.distributed.pipelining over Gloo. Before that, the losses of five steps are compared. --row: "
      "part of the names of the rows\nto measure, such as 1f1b.",
      run, {{"row", ""}});
}
