// What the taps cost: added time per operator and per training step, beside what Python's own hooks add.
#include "bellows/tap.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

#include <torch/torch.h>

#include <memory>

namespace bellows::bench {
namespace {

using Body = std::function<double(int64_t)>;  // does n units, returns a figure of the last result

struct Watching : tap::Observer {
  explicit Watching(tap::ObserverNeeds what) : wanted(what) {}
  tap::ObserverNeeds needs() const override { return wanted; }
  void before(const tap::OpEvent&) override { ++seen; }
  tap::ObserverNeeds wanted;
  int64_t seen = 0;
};

struct Checking : tap::OpCheck {
  void check(const tap::OpRef&, tap::Stack&) override { ++seen; }
  int64_t seen = 0;
};

struct Leaving : tap::ArgumentTap {
  void call(const tap::OpRef&, std::span<c10::IValue>) override { ++seen; }
  int64_t seen = 0;
};

struct PassThrough : tap::OpTap {
  void call(const tap::OpCall& op, tap::Stack& stack) override { op.next(stack); }
};

struct Keeping : tap::SavedTensorTap {
  struct Kept : tap::PackedTensor {
    explicit Kept(at::Tensor t) : tensor(std::move(t)) {}
    at::Tensor unpack() override { return tensor; }
    at::Tensor tensor;
  };
  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override { return std::make_shared<Kept>(tensor); }
};

at::Tensor pattern(at::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), at::kFloat).mul_(0.37).sin_().view(sizes);
}

double add(int64_t n) {
  const auto x = pattern({4}), y = pattern({4});
  at::Tensor z;
  for (int64_t i = 0; i < n; ++i) z = at::add(x, y);
  return z.sum().item<double>();
}

double add_in_place(int64_t n) {
  auto x = pattern({4});
  const auto y = torch::zeros({4});
  for (int64_t i = 0; i < n; ++i) x.add_(y);
  return x.sum().item<double>();
}

double add_with_gradient(int64_t n) {
  const auto x = pattern({4}).requires_grad_(), y = pattern({4});
  at::Tensor z;
  for (int64_t i = 0; i < n; ++i) z = at::add(x, y);
  return z.sum().item<double>();
}

double allocate(int64_t n) {
  at::Tensor z;
  for (int64_t i = 0; i < n; ++i) z = at::empty({1024});
  return static_cast<double>(z.numel());
}

/// Forward and backward of two convolutions and a linear layer, so small that the operators' own overhead is what
/// counts. The figure is the sum of the gradients' sizes.
double training_step(int64_t n) {
  const auto x = pattern({2, 4, 8, 8});
  std::vector<at::Tensor> weights{pattern({8, 4, 3, 3}), pattern({8, 8, 3, 3}), pattern({10, 8 * 16})};
  for (auto& w : weights) w.requires_grad_();
  for (int64_t i = 0; i < n; ++i) {
    for (auto& w : weights) w.mutable_grad() = at::Tensor();
    auto h = at::relu(at::conv2d(x, weights[0], {}, 1, 1));
    h = at::max_pool2d(at::relu(at::conv2d(h, weights[1], {}, 1, 1)), {2, 2}).flatten(1);
    at::tanh(at::mm(h, weights[2].t())).pow(2).mean().backward();
  }
  double sum = 0;
  for (const auto& w : weights) sum += w.grad().abs().sum().item<double>();
  return sum;
}

/// One way of hooking into one piece of work, and what Python has for it.
struct Work {
  std::string name;
  std::string kernel;  ///< the peer's name for the work
  Body body;
  std::function<std::shared_ptr<void>()> install;  ///< the tap lives as long as the result
  std::vector<std::string> peers;                  ///< the peer's names for its hooks
};

template <class Guard, class Client, class... Args>
std::function<std::shared_ptr<void>()> installer(Args... args) {
  return [=] { return std::make_shared<Guard>(std::make_shared<Client>(args...)); };
}

std::vector<Work> all_work() {
  using namespace tap;
  const auto op_tap = installer<OpTapGuard, PassThrough>();
  const auto nothing = [] {
    install_cpu_allocator();
    return std::shared_ptr<void>();
  };
  std::vector<Work> work{
      {"Observer, names, on add",
       "add",
       add,
       installer<ObserverGuard, Watching>(ObserverNeeds{}),
       {"dispatch_mode", "profiler"}},
      {"Observer, inputs and outputs, on add",
       "add",
       add,
       installer<ObserverGuard, Watching>(ObserverNeeds{.inputs = true, .outputs = true}),
       {"dispatch_mode", "profiler"}},
      {"OpCheck on add", "add", add, installer<OpCheckGuard, Checking>(), {"function_mode"}},
      {"ArgumentTap on a small training step", "step", training_step, installer<ArgumentTapGuard, Leaving>(), {}},
      {"OpTap, pass-through, on add", "add", add, op_tap, {"dispatch_mode"}},
      {"OpTap, pass-through, on add_", "add_", add_in_place, op_tap, {"dispatch_mode"}},
      {"OpTap, pass-through, on add with gradient", "add_grad", add_with_gradient, op_tap, {"dispatch_mode"}},
      {"OpTap, pass-through, on a small training step", "step", training_step, op_tap, {"dispatch_mode"}},
      {"SavedTensorTap on a small training step",
       "step",
       training_step,
       installer<SavedTensorGuard, Keeping>(),
       {"saved_tensors_hooks"}},
  };
  work.push_back({"CPU allocator hook on empty(1024)", "", allocate, nothing, {}});  // last: it stays installed
  return work;
}

Contestant side(std::string name, const Body& body, std::function<std::shared_ptr<void>()> install) {
  return {std::move(name), [body, install](int64_t n) {
            const auto guard = install ? install() : nullptr;
            return seconds_of([&] { body(n); });
          }};
}

Contestant peer_side(PeerProcess& peer, const std::string& kernel, const std::string& hook) {
  return {"Python " + hook, [&peer, kernel, hook](int64_t n) {
            peer.ask("use " + kernel + " " + hook);
            return peer.run(n);
          }};
}

/// Params: plain – the figure of the work without a hook
bool agree(const Work& work, double plain, PeerProcess* peer) {
  bool equal = false;
  {
    const auto guard = work.install();
    equal = work.body(3) == plain;
  }
  if (!peer) return equal;
  for (const std::string& hook : work.peers) {
    peer->ask("use " + work.kernel + " " + hook);
    const double theirs = peer->ask_numbers("value 3").at(0);
    equal = equal && std::abs(theirs - plain) <= 1e-4 * std::abs(plain);
  }
  return equal;
}

Comparison measure_windows(const Work& work, const Options& options, PeerProcess* peer) {
  std::vector<Contestant> sides{side("ours", work.body, work.install), side("plain", work.body, nullptr)};
  const Plan plan{.units = work.kernel == "step" ? (options.quick ? 200 : 400) : (options.quick ? 20000 : 40000),
                  .windows = options.quick ? 5 : 15};
  if (work.kernel.empty()) {  // the allocator hook stays once it is in place: the plain windows come first
    const Comparison before = compare({sides[1]}, plan);
    work.install();
    Comparison after = compare({sides[0]}, plan);
    after.sides.push_back(before.sides[0]);
    return after;
  }
  if (peer) {
    sides.push_back(peer_side(*peer, work.kernel, "none"));
    for (const std::string& hook : work.peers) sides.push_back(peer_side(*peer, work.kernel, hook));
  }
  return compare(sides, plan);
}

Row measure(const Work& work, const Options& options, PeerProcess* peer) {
  const double plain = work.body(3);
  const Comparison all = measure_windows(work, options, peer);
  return added_time_row(work.name, work.kernel == "step" ? "added time per step" : "added time per operator", "us", all,
                        agree(work, plain, peer));
}

int run(const Options& options) {
  at::set_num_threads(1);
  Report report("taps", options);
  std::unique_ptr<PeerProcess> peer;
  if (!options.peer_python.empty()) {
    peer = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/taps.py"});
  }
  for (const Work& work : all_work()) {
    if (report.has_time_for(work.name)) report.add(measure(work, options, peer.get()));
  }
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Measures the time that each tap adds to an operator or a training step. Also measures Python's "
                    "dispatch mode, function\nmode, profiler and saved-tensor hooks. Uses one thread.",
                    run);
}
