// The plain libtorch program against the same loop in Python: neither side may be a straw man.
#include <cmath>
#include <cstdio>
#include <memory>

#include "bellows/ladder/plain_libtorch.h"
#include "bellows/models/formula_weights.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

using plain_libtorch::Training;

// The state is called parameters first, buffers after them: only parameters require gradients.
void set_weights(Training& training) {
  NamedTensors parameters;
  for (const auto& item : training.state_dict()) {
    if (item.second.requires_grad()) parameters.push_back(item);
  }
  models::set_formula_weights(parameters);
}

Contestant as_contestant(Training& training) {
  return {"plain libtorch", [&training](int64_t n) { return seconds_of([&] { training.run_steps(n); }); }};
}

std::unique_ptr<PeerProcess> start_peer(const Options& options, int64_t batch) {
  if (options.peer_python.empty()) return nullptr;
  return std::make_unique<PeerProcess>(std::vector<std::string>{options.peer_python,
                                                                source_dir() + "/bench/peers/digits.py", "--data",
                                                                options.data, "--batch", std::to_string(batch)});
}

int compare_baselines(const Options& options) {
  Report report("baseline", options);
  for (const int64_t batch : {64, 256}) {
    Training training({.data = options.data, .batch = batch});
    set_weights(training);
    const auto peer = start_peer(options, batch);
    std::vector<Contestant> sides = {as_contestant(training)};
    bool equal = true;
    std::string note = "no peer, so the loss of the first batch was not compared";
    if (peer) {
      const double ours = training.first_batch_loss(), theirs = peer->ask_numbers("first_batch_loss").at(0);
      equal = std::abs(ours - theirs) <= 1e-4 * std::abs(theirs);
      char text[96];
      std::snprintf(text, sizeof text, "loss of the first batch with equal weights: %.7f, Python %.7f", ours, theirs);
      note = text;
      sides.push_back(peer->as_contestant("Python PyTorch"));
    }
    const Plan plan{.units = options.quick ? 10 : training.steps_per_epoch(),
                    .windows = options.quick ? 9 : 15,
                    .budget_s = options.quick ? 10 : 1e9};
    Row row = time_row("digits ResNet, whole loop, batch " + std::to_string(batch), "time per step", "ms",
                       compare(sides, plan), equal);
    row.note = note;
    report.add(std::move(row));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Times a step of the plain libtorch program for the digits (rung 0 of the ladder) and of the "
                    "equivalent Python loop,\nincluding data loading.",
                    compare_baselines);
}
