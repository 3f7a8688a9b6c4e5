// Forward and backward of attention over a sequence that 2 or 4 ranks of one thread each divide: our ring and
// all-to-all against the ring of Python's context_parallel, with the same kernel of libtorch.
#include <c10/util/StringUtil.h>

#include <optional>
#include <string_view>

#include "bench/context/side.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

/// All ranks of each side.
struct Sides {
  PeerProcess ours, gathering;
  std::optional<PeerProcess> python;

  Sides(int ranks, const Options& options)
      : ours(with_world(our_command(), ranks)), gathering(with_world(our_command(), ranks)) {
    if (!options.peer_python.empty())
      python.emplace(with_world({options.peer_python, source_dir() + "/bench/peers/context.py"}, ranks));
  }
};

Row measure(const std::string& order, const std::string& method, int ranks, const Options& options, Sides& sides) {
  const std::vector<double> numbers = sides.ours.ask_numbers("numbers " + order + "." + method);
  bool equal = close(numbers, sides.gathering.ask_numbers("numbers " + order + ".gather"), 1e-4);
  std::vector<Contestant> contestants = {sides.ours.as_contestant(method),
                                         sides.gathering.as_contestant("all keys gathered")};
  if (sides.python) {
    equal = close(numbers, sides.python->ask_numbers("numbers " + order + ".ring"), 1e-4) && equal;
    contestants.push_back(sides.python->as_contestant("Python's ring"));
  }
  const ContextSizes sizes;
  const std::string title = c10::str(order, " attention, ", sizes.heads, " heads of ", sizes.width, ", ", sizes.tokens,
                                     " tokens on ", ranks, " ranks, ", method);
  return time_row(title, "time of forward and backward", "ms", compare(contestants, steps_plan(options)), equal);
}

int run(const Options& options) {
  Report report("context", options);
  for (const int ranks : {2, 4}) {
    std::optional<Sides> sides;
    for (const char* order : {"causal", "full"}) {
      for (const char* method : {"ring", "all_to_all"}) {
        const std::string name = c10::str(order, " ", method, " ", ranks, " ranks");
        if (name.find(options.extra.at("row")) == std::string::npos || !report.has_time_for(name)) continue;
        if (!sides) sides.emplace(ranks, options);
        report.add(measure(order, method, ranks, options, *sides));
      }
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--serve") return serve_context_rank({});
  return bench_main(
      argc, argv,
      "Times attention over a divided sequence, forward and backward, on 2 and 4 ranks of one thread each: ring "
      "attention and all-to-all,\nagainst gathering all keys and against the ring of Python's context_parallel "
      "with libtorch's kernel for CPUs. Before that, the results are\ncompared. --row: part of the names of the "
      "rows to measure, such as ring.",
      run, {{"row", ""}});
}
