// The time of a call that is plain, followed or replayed, and the time of its program alone.
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <utility>

#include "bellows/compile.h"
#include "bellows/compile/backend.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Function = std::function<at::Tensor(const at::Tensor&)>;

/// A function with its own state, created anew for each side.
struct Work {
  std::string name;
  at::Tensor input;
  std::function<Function()> make;
};

Work chain_of_additions() {
  return {"1000 additions of 16 numbers", torch::ones({16}), [] {
            return [](const at::Tensor& x) {
              const at::NoGradGuard no_grad;
              at::Tensor sum = x;
              for (int i = 0; i < 1000; ++i) sum = sum + x;
              return sum;
            };
          }};
}

torch::nn::Sequential eight_layers() {
  namespace nn = torch::nn;
  torch::manual_seed(1);
  nn::Sequential net;
  for (int i = 0; i < 8; ++i) {
    net->push_back(nn::Linear(64, 64));
    net->push_back(nn::GELU());
  }
  net->push_back(nn::Linear(64, 10));
  return net;
}

Work inference() {
  return {"8 layers of 64, batch 32, inference", torch::randn({32, 64}), [] {
            return [net = eight_layers()](const at::Tensor& x) mutable {
              const at::NoGradGuard no_grad;
              return net->forward(x);
            };
          }};
}

Work sgd_step() {
  return {"8 layers of 64, batch 32, SGD step", torch::randn({32, 64}), [] {
            auto net = eight_layers();
            auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(1e-3));
            return [=, y = torch::randint(0, 10, {32})](const at::Tensor& x) mutable {
              optimizer->zero_grad();
              const at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), y);
              loss.backward();
              optimizer->step();
              return loss.detach();
            };
          }};
}

/// Measures the time that programs take without following or replaying.
class TimedBackend : public graph::Backend {
 public:
  std::shared_ptr<graph::Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    return std::make_shared<Timed>(programs_.prepare(std::move(program), inputs), seconds);
  }
  std::string to_text() const override { return programs_.to_text(); }

  double seconds = 0;

 private:
  class Timed : public graph::Executable {
   public:
    Timed(std::shared_ptr<graph::Executable> timed, double& seconds) : timed_(std::move(timed)), seconds_(seconds) {}
    void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
             std::span<c10::Storage> outputs) override {
      const auto begin = Clock::now();
      timed_->run(inputs, numbers, outputs);
      seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
    }

   private:
    std::shared_ptr<graph::Executable> timed_;
    double& seconds_;
  };

  compile_detail::CpuBackend programs_;
};

/// Returns the time in seconds that a call takes in addition to its program; the median of 11 windows.
double added_s(const Work& work, const graph::ReplayOptions& replay, int calls) {
  const auto backend = std::make_shared<TimedBackend>();
  graph::Region region({.record_deferred = true, .replay = replay, .backend = backend});
  const Function function = work.make();
  const std::vector<const at::Tensor*> arguments{&work.input};
  const auto call = [&] {
    graph::CallFrame frame;
    at::Tensor result;
    region.run([&] { frame.returned.push_back(result = function(work.input)); }, arguments, &frame);
  };
  for (int i = 0; i < 8; ++i) call();
  std::vector<double> windows;
  for (int window = 0; window < 11; ++window) {
    backend->seconds = 0;
    const double all = seconds_of([&] {
      for (int i = 0; i < calls; ++i) call();
    });
    windows.push_back((all - backend->seconds) / calls);
  }
  return median(windows);
}

Row measure(const Work& work, const Options& options) {
  const graph::ReplayOptions replay{.after = 3};
  auto replayed = compile(work.make(), {.replay = replay});
  auto followed = compile(work.make(), {.always = true});
  const Function plain = work.make();
  bool close = true;
  for (int call = 0; call < 8; ++call) {
    const at::Tensor expected = plain(work.input);
    close = close && at::allclose(replayed(work.input), expected) && at::allclose(followed(work.input), expected);
  }
  TORCH_CHECK(replayed.explain().replayed_calls > 0, "replay: no call was replayed.\n", replayed.explain().to_text());
  // Windows are short, because the other sides take up to 50 times as long.
  const Comparison all = compare({timed_contestant("replayed", [&] { replayed(work.input); }),
                                  timed_contestant("followed", [&] { followed(work.input); }),
                                  timed_contestant("plain", [&] { plain(work.input); })},
                                 {.window_s = options.quick ? 0.005 : 0.01, .windows = options.quick ? 5 : 15});
  Row row = time_row(work.name, "time per call", "us", all, close);
  const auto operators = static_cast<double>(replayed.recordings().at(0).program.instructions.size());
  const int calls = options.quick ? 100 : 300;
  const double added_replayed = 1e6 * added_s(work, {.after = 3, .verify_every = 1 << 30}, calls),
               added_followed = 1e6 * added_s(work, {}, calls);
  row.note = c10::str(operators, " operators; added to the program: replayed ", added_replayed, " us (",
                      added_replayed / operators, " us per operator, without verification), followed ", added_followed,
                      " us (", added_followed / operators, ")");
  return row;
}

int run(const Options& options) {
  Report report("replay", options);
  at::set_num_threads(1);
  for (const Work& work : {chain_of_additions(), inference(), sgd_step()}) report.add(measure(work, options));
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Times calls of compiled functions on one thread: replayed, followed and plain. The line below a "
                    "row states\nthe time that replaying and following add to the program.",
                    run);
}
