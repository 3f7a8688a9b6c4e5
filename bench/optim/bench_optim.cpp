// Optimizer steps over many tensors against Python PyTorch: loop, foreach, fused.
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "bellows/optim/adafactor.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/state.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

using optim::Impl;
using optim::LibtorchOptimizer;
using BenchTensors = std::vector<at::Tensor>;
using MakeOptimizer = std::unique_ptr<LibtorchOptimizer> (*)(BenchTensors);

/// An optimizer, what one step of it moves, and what Python has of it.
struct Work {
  const char* name;
  MakeOptimizer make;
  double bytes_per_parameter;
  std::vector<std::string> peers;
  bool master_weights = false;
};

template <class Optimizer, auto options>
std::unique_ptr<LibtorchOptimizer> make(BenchTensors p) {
  return std::make_unique<Optimizer>(std::move(p), options());
}

std::vector<Work> all_work() {
  using namespace optim;
  const std::vector<std::string> three = {"fused", "foreach", "loop"}, two = {"foreach", "loop"};
  // Read parameter, gradient and state, write parameter and state: 4 bytes each.
  return {{"AdamW", make<AdamW, [] { return AdamWOptions{.lr = 1e-3}; }>, 28, three},
          {"SGD", make<SGD, [] { return SGDOptions{.lr = 1e-3, .momentum = 0.9}; }>, 20, three},
          {"RMSprop", make<RMSprop, [] { return RMSpropOptions{.lr = 1e-3}; }>, 20, two},
          {"Adam", make<Adam, [] { return AdamOptions{.lr = 1e-3}; }>, 28, three},
          {"Adagrad", make<Adagrad, [] { return AdagradOptions{.lr = 1e-3}; }>, 20, three},
          {"Lion", make<Lion, [] { return LionOptions{.lr = 1e-3}; }>, 20, {"loop"}},
          {"AdamW, bf16 weights, fp32 master and state",
           make<AdamW, [] { return AdamWOptions{.lr = 1e-3, .master_weights = true}; }>,
           28,
           {},
           true}};
}

/// An optimizer whose state is small, beside the one that keeps it in fp32.
struct SmallState {
  const char* name;
  MakeOptimizer small, full;
  double bytes_per_parameter;  ///< that one step of the small one moves
  double tolerance;            ///< of a weight after three steps of 1e-3
  bool same_rule;              ///< both lead to the same place, but for `tolerance`
  const char* peer;            ///< its name in Python; empty: none
};

std::vector<SmallState> all_small_states() {
  using namespace optim;
  constexpr auto adamw = [] { return AdamWOptions{.lr = 1e-3}; };
  constexpr auto sgd = [] { return SGDOptions{.lr = 1e-3, .momentum = 0.9}; };
  return {{"AdamW, 8-bit state", make<AdamW, [] { return AdamWOptions{.lr = 1e-3, .state_dtype = State::int8}; }>,
           make<AdamW, adamw>, 16, 2.5e-4, true, "AdamW8bit"},
          {"SGD, 8-bit state",
           make<SGD, [] { return SGDOptions{.lr = 1e-3, .momentum = 0.9, .state_dtype = State::int8}; }>,
           make<SGD, sgd>, 14, 2.5e-4, true, "SGD8bit"},
          {"AdamW, 4-bit state", make<AdamW, [] { return AdamWOptions{.lr = 1e-3, .state_dtype = State::int4}; }>,
           make<AdamW, adamw>, 14, 1.5e-3, true, ""},
          {"Adafactor", make<Adafactor, [] { return AdafactorOptions{}; }>, make<AdamW, adamw>, 24, 1e-5, false,
           "Adafactor"}};
}

/// Two parameters, [side, side] and [side], where the fixed cost of a step is all there is.
struct TinyWork {
  const char* name;
  MakeOptimizer make;
  std::unique_ptr<torch::optim::Optimizer> (*make_libtorch)(BenchTensors);
};

template <class Optimizer, auto options>
std::unique_ptr<torch::optim::Optimizer> make_libtorch(BenchTensors p) {
  return std::make_unique<Optimizer>(std::move(p), options());
}

std::vector<TinyWork> all_tiny_work() {
  using namespace torch::optim;
  return {{"SGD", make<optim::SGD, [] { return optim::SGDOptions{.lr = 1e-3, .momentum = 0.9}; }>,
           make_libtorch<SGD, [] { return SGDOptions(1e-3).momentum(0.9); }>},
          {"Adam", make<optim::Adam, [] { return optim::AdamOptions{.lr = 1e-3}; }>,
           make_libtorch<Adam, [] { return AdamOptions(1e-3); }>},
          {"AdamW", make<optim::AdamW, [] { return optim::AdamWOptions{.lr = 1e-3}; }>,
           make_libtorch<AdamW, [] { return AdamWOptions(1e-3); }>}};
}

BenchTensors tiny_parameters(int64_t side) {
  BenchTensors result = {torch::arange(side * side, torch::kFloat32).sin().view({side, side}),
                         torch::arange(side, torch::kFloat32).cos()};
  for (at::Tensor& p : result) {
    p.set_requires_grad(true);
    p.mutable_grad() = p.detach() * 0.01;
  }
  return result;
}

struct Size {
  int64_t tensors, total;
  std::string text() const { return std::to_string(total / 1'000'000) + " M in " + std::to_string(tensors); }
};

const char* text(Impl impl) {
  return impl == Impl::loop ? "loop" : impl == Impl::foreach ? "foreach" : "fused";
}

class OurOptimizer {
 public:
  OurOptimizer(const Work& work, Size size) : OurOptimizer(work.make, work.master_weights, size) {}
  OurOptimizer(MakeOptimizer make, bool low_precision, Size size) {
    const at::Tensor base = torch::arange(size.total / size.tensors, torch::kFloat32);
    const auto type = low_precision ? at::kBFloat16 : at::kFloat;
    for (int64_t i = 0; i < size.tensors; ++i) {
      parameters_.push_back(base.add(i).mul_(0.37).sin_().to(type).view({-1, 250}).set_requires_grad(true));
      parameters_.back().mutable_grad() = base.add(i).mul_(0.11).sin_().mul_(0.01).to(type).view({-1, 250});
    }
    optimizer_ = make(parameters_);
  }

  /// The same elements as the peer's.
  std::vector<double> samples(Impl impl, int steps) {
    run(impl, steps);
    std::vector<double> result;
    const size_t stride = std::max<size_t>(1, parameters_.size() / 4);
    for (size_t i = 0; i < parameters_.size(); i += stride) {
      const at::Tensor p =
          parameters_[i].detach().flatten().slice(0, 0, std::nullopt, 7919).slice(0, 0, 8).to(torch::kFloat64);
      for (int64_t k = 0; k < p.size(0); ++k) result.push_back(p[k].item<double>());
    }
    return result;
  }

  Contestant as_contestant(Impl impl) { return as_contestant(impl, std::string("ours, ") + text(impl)); }
  Contestant as_contestant(Impl impl, const std::string& name) {
    return {name, [this, impl](int64_t n) { return run(impl, n); }};
  }
  double state_bytes() const {
    double bytes = 0;
    for (const auto& [name, tensor] : optim::state_dict(*optimizer_)) {
      if (name.starts_with("state.") && tensor.dim() > 0) bytes += static_cast<double>(tensor.nbytes());
    }
    return bytes;
  }

 private:
  double run(Impl impl, int64_t n) {
    optimizer_->set_impl(impl);
    return seconds_of([&] {
      for (int64_t i = 0; i < n; ++i) optimizer_->step();
    });
  }

  BenchTensors parameters_;
  std::unique_ptr<LibtorchOptimizer> optimizer_;
};

bool close(const std::vector<double>& a, const std::vector<double>& b, double limit = 1e-5) {
  bool result = a.size() == b.size();
  for (size_t i = 0; result && i < a.size(); ++i) result = std::abs(a[i] - b[i]) <= limit * (1 + std::abs(b[i]));
  return result;
}

class OptimBench {
 public:
  OptimBench(const Options& options, Report& report) : options_(options), report_(report) {
    if (options.peer_python.empty()) return;
    peer_ = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/optim.py"});
  }

  void measure(const Work& work, Size size) {
    const bool equal = equal_results(work, {16, 400'000});
    OurOptimizer ours(work, size);
    make_peer(work, size);
    add_row(work, size, ours, Impl::fused, work.peers, equal);
    if (!options_.quick && !work.master_weights) {
      add_row(work, size, ours, Impl::foreach, {"foreach"}, equal);
      add_row(work, size, ours, Impl::loop, {"loop"}, equal);
    }
    if (peer_) peer_->ask("drop");
  }

  /// libtorch's optimizer of the same name in the same process.
  void measure(const TinyWork& work, int64_t side) {
    const BenchTensors ours = tiny_parameters(side), theirs = tiny_parameters(side);
    const auto optimizer = work.make(ours);
    const auto libtorch = work.make_libtorch(theirs);
    const auto run = [](torch::optim::Optimizer& stepping) {
      return [&stepping](int64_t n) {
        return seconds_of([&] {
          for (int64_t i = 0; i < n; ++i) stepping.step();
        });
      };
    };
    run (*optimizer)(3), run (*libtorch)(3);
    const bool equal =
        torch::allclose(ours[0], theirs[0], 1e-5, 1e-5) && torch::allclose(ours[1], theirs[1], 1e-5, 1e-5);
    const Comparison comparison =
        compare({{"ours, fused", run(*optimizer)}, {"torch::optim", run(*libtorch)}}, {.units = 2000, .windows = 9});
    const std::string shape = std::to_string(side);
    report_.add(time_row(std::string(work.name) + ", [" + shape + ", " + shape + "] and [" + shape + "]",
                         "time per step", "us", comparison, equal));
  }

  /// Small state against fp32 state in the same run; Python's beside them where it can be waited for.
  void measure(const SmallState& work, Size size) {
    const bool with_peer = peer_ && *work.peer && size.total < 50'000'000;
    const bool equal = small_results_agree(work, {16, 400'000}, with_peer);
    OurOptimizer small(work.small, false, size), full(work.full, false, size);
    std::vector<Contestant> sides = {
        small.as_contestant(Impl::fused, "ours"),
        full.as_contestant(Impl::fused, work.same_rule ? "ours, fused, fp32 state" : "ours, fused AdamW")};
    if (with_peer) {
      peer_->ask(std::string("make ") + work.peer + " " + std::to_string(size.tensors) + " " +
                 std::to_string(size.total));
      sides.push_back({std::string("Python, ") + work.peer, [this](int64_t n) { return peer_->run(n); }});
    }
    const Comparison comparison = compare(sides, plan_for(size));
    const double bandwidth = memory_bytes_per_s();
    Row row =
        time_row(std::string(work.name) + ", " + size.text() + " tensors", "time per step", "ms", comparison, equal);
    row.limit = 1e3 * work.bytes_per_parameter * static_cast<double>(size.total) / bandwidth;
    char note[160];
    std::snprintf(note, sizeof note,
                  "%.3f bytes of state per parameter instead of %.3f; moves %.0f bytes per parameter",
                  small.state_bytes() / static_cast<double>(size.total),
                  full.state_bytes() / static_cast<double>(size.total), work.bytes_per_parameter);
    row.note = note;
    report_.add(std::move(row));
    if (with_peer) peer_->ask("drop");
  }

 private:
  /// After three steps each weight is close to where fp32 state leads, and to Python's.
  bool small_results_agree(const SmallState& work, Size size, bool with_peer) {
    const std::vector<double> ours = OurOptimizer(work.small, false, size).samples(Impl::fused, 3);
    bool equal =
        !work.same_rule || close(ours, OurOptimizer(work.full, false, size).samples(Impl::fused, 3), work.tolerance);
    if (with_peer) {
      peer_->ask(std::string("make ") + work.peer + " " + std::to_string(size.tensors) + " " +
                 std::to_string(size.total));
      equal = equal && close(ours, peer_->ask_numbers("samples loop 3"), work.tolerance);
    }
    return equal;
  }

  Plan plan_for(Size size) const {
    const bool large = size.total > 50'000'000;
    return {.units = options_.quick || large ? 3 : 5,
            .windows = options_.quick ? 5
                       : large        ? 7
                                      : 11,
            .budget_s = options_.quick ? 4 : 1e9,
            .before_round = [] { memory_bytes_per_s(); }};
  }

  void make_peer(const Work& work, Size size) {
    if (!peer_ || work.peers.empty()) return;
    peer_->ask(std::string("make ") + work.name + " " + std::to_string(size.tensors) + " " +
               std::to_string(size.total));
  }

  /// Three steps of every implementation of both sides, each from the start.
  bool equal_results(const Work& work, Size size) {
    if (!peer_ || work.peers.empty()) return true;
    std::vector<std::vector<double>> results;
    for (const Impl impl : {Impl::fused, Impl::foreach, Impl::loop})
      results.push_back(OurOptimizer(work, size).samples(impl, 3));
    for (const std::string& name : work.peers) {
      make_peer(work, size);
      results.push_back(peer_->ask_numbers("samples " + name + " 3"));
    }
    return std::all_of(results.begin(), results.end(), [&](const auto& r) { return close(r, results[0]); });
  }

  void add_row(const Work& work, Size size, OurOptimizer& ours, Impl impl, const std::vector<std::string>& peers,
               bool equal) {
    std::vector<Contestant> sides = {ours.as_contestant(impl)};
    for (const std::string& name : peers) {
      if (!peer_ || std::find(work.peers.begin(), work.peers.end(), name) == work.peers.end()) continue;
      sides.push_back({"Python, " + name, [this, name](int64_t n) {
                         peer_->ask("use " + name);
                         return peer_->run(n);
                       }});
    }
    const Comparison comparison = compare(sides, plan_for(size));
    const double bandwidth = memory_bytes_per_s();
    Row row = time_row(std::string(work.name) + ", " + size.text() + " tensors, " + text(impl), "time per step", "ms",
                       comparison, equal);
    const double bytes = work.bytes_per_parameter * static_cast<double>(size.total);
    row.limit = 1e3 * bytes / bandwidth;
    char note[160];
    std::snprintf(note, sizeof note,
                  "%.0f bytes per parameter: %.1f GB/s, %.0f %% of the memory bandwidth of %.1f GB/s in this run",
                  work.bytes_per_parameter, bytes / comparison.ours().seconds() / 1e9,
                  100 * bytes / comparison.ours().seconds() / bandwidth, bandwidth / 1e9);
    row.note = note;
    report_.add(std::move(row));
  }

  const Options& options_;
  Report& report_;
  std::unique_ptr<PeerProcess> peer_;
};

int run(const Options& options) {
  Report report("optim", options);
  OptimBench bench(options, report);
  const std::string& only = options.extra.at("only");
  const auto measure = [&](const auto& all, Size size) {
    for (const auto& work : all) {
      const std::string name = std::string(work.name) + ", " + size.text();
      if (name.find(only) != std::string::npos && report.has_time_for(name)) bench.measure(work, size);
    }
  };
  for (const int64_t side : {10, 64}) {
    for (const TinyWork& work : all_tiny_work()) {
      const std::string name = std::string(work.name) + ", tiny";
      if (name.find(only) != std::string::npos && report.has_time_for(name)) bench.measure(work, side);
    }
  }
  for (const Size size : {Size{160, 25'000'000}, Size{200, 100'000'000}}) {
    if (options.quick && size.total > 25'000'000 && only.empty()) continue;
    measure(all_work(), size);
    measure(all_small_states(), size);
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times optimizer steps over two tiny tensors, over 25 M parameters in 160 tensors, and over 100 M parameters in "
      "200 tensors,\nwith existing gradients. Compares Bellows with Python PyTorch from the same parameters. Elements "
      "are compared after the\nsame number of steps. --only TEXT: only rows whose names contain TEXT.",
      run, {{"only", ""}});
}
