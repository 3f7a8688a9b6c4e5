// Tensor parallelism on ranks of one thread each against Python's parallelize_module, over Gloo, from the same libtorch.
#include <cmath>
#include <optional>
#include <string_view>

#include "bench/support/bench.h"
#include "bench/support/peer_process.h"
#include "bench/support/ranks.h"
#include "bench/tensor/side.h"

namespace bellows::bench {

namespace {

constexpr double learning_rate = 1e-4;
constexpr int64_t checked = 5;  // by then the loss has fallen

/// The processes of one side.
struct TensorSide {
  TensorSide(std::string the_name, const std::vector<std::string>& command, int ranks)
      : name(std::move(the_name)), process(with_world(command, ranks)) {}
  std::vector<double> losses(const std::string& variant) {
    return process.ask_numbers("losses " + variant + " " + std::to_string(checked));
  }
  Contestant as_contestant(const std::string& variant) { return process.as_contestant(name + ", " + variant); }

  std::string name;
  PeerProcess process;
};

Row measure(const std::string& title, const std::string& variant, const Options& options, TensorSide& ours,
            TensorSide* theirs) {
  const std::vector<double> losses = ours.losses(variant);
  bool equal = std::isfinite(losses.back()) && losses.back() < losses.front();
  std::vector<Contestant> sides = {ours.as_contestant(variant)};
  if (theirs) {
    equal = close(losses, theirs->losses(variant), 2e-3) && equal;
    sides.push_back(theirs->as_contestant(variant));
  }
  return time_row(title, "time per step", "ms", compare(sides, steps_plan(options)), equal);
}

int run(const Options& options) {
  const int ranks = std::stoi(options.extra.at("ranks"));
  Report report("tensor", options);
  TensorSide ours("ours", our_command(), ranks);
  std::optional<TensorSide> theirs;
  if (!options.peer_python.empty())
    theirs.emplace("Python",
                   std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/tensor.py", "--lr",
                                            std::to_string(learning_rate)},
                   ranks);
  for (const char* variant : {"layers", "vocabulary", "sequence"}) {
    const std::string title =
        "language model of 11 M, 4 sequences of 128, " + std::to_string(ranks) + " ranks, " + variant;
    if (title.find(options.extra.at("row")) != std::string::npos && report.has_time_for(title))
      report.add(measure(title, variant, options, ours, theirs ? &*theirs : nullptr));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 2 && std::string_view(argv[1]) == "--serve") return serve_tensor_rank(learning_rate);
  return bench_main(
      argc, argv,
      "Times a training step with AdamW of a language model whose layers are divided among ranks of one "
      "thread each, against\nPython's parallelize_module over Gloo. Variants: layers (ColwiseParallel, "
      "RowwiseParallel), vocabulary (also the\nembedding and the output layer, with loss_parallel), "
      "sequence (also SequenceParallel). Before that, the losses of the\nfirst steps are compared. --row: "
      "part of the names of the rows to measure. --ranks: number of ranks, such as 2 or 4.",
      run, {{"row", ""}, {"ranks", "2"}});
}
