// Random numbers on the CPU, against libtorch's own kernels.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "bellows/nn/fast_random.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

constexpr int64_t values = 1 << 20;

/// One operator; `draw` returns the values for the comparison.
struct Work {
  std::string name;
  std::function<at::Tensor()> draw;
};

Work fill(const std::string& name, at::ScalarType dtype, std::function<void(at::Tensor&)> draw) {
  at::Tensor x = torch::empty({values}, dtype);
  return {name + ", " + c10::toString(dtype), [=]() mutable {
            draw(x);
            return x;
          }};
}

std::vector<Work> all_work() {
  std::vector<Work> all;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kBool}) {
    all.push_back(fill("bernoulli_(0.9)", dtype, [](at::Tensor& x) { x.bernoulli_(0.9); }));
  }
  const at::Tensor x = torch::ones({values}), p = torch::full({values}, 0.9);
  all.push_back({"dropout(0.1), Float", [=] { return torch::dropout(x, 0.1, true); }});
  all.push_back(fill("bernoulli_(tensor)", at::kFloat, [=](at::Tensor& y) { y.bernoulli_(p); }));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    all.push_back(fill("uniform_()", dtype, [](at::Tensor& y) { y.uniform_(); }));
    all.push_back(fill("normal_()", dtype, [](at::Tensor& y) { y.normal_(); }));
  }
  all.push_back(fill("random_(100)", at::kLong, [](at::Tensor& y) { y.random_(100); }));
  all.push_back({"randperm, Long", [] { return torch::randperm(values); }});
  return all;
}

/// Values and the state of the generator, drawn twice from the same seed.
bool equal(const Work& work) {
  const auto run = [&](bool ours) {
    const nn::FastRandomGuard guard(ours);
    torch::manual_seed(1);
    const at::Tensor drawn = work.draw().clone();
    return std::pair(drawn, work.draw().clone());
  };
  const auto state = [] { return at::Tensor(at::detail::getDefaultCPUGenerator().get_state()); };
  const auto theirs = run(false);
  const at::Tensor their_state = state();
  const auto ours = run(true);
  return torch::equal(ours.first, theirs.first) && torch::equal(ours.second, theirs.second) &&
         torch::equal(state(), their_state);
}

Row measure(const Work& work, int threads, const Options& options) {
  at::set_num_threads(threads);
  const bool same = equal(work);
  const auto side = [&](const std::string& name, bool ours) {
    return Contestant{name, [&work, ours](int64_t n) {
                        const nn::FastRandomGuard guard(ours);
                        return seconds_of([&] {
                          for (int64_t i = 0; i < n; ++i) work.draw();
                        });
                      }};
  };
  const Comparison comparison = compare(
      {side("ours", true), side("libtorch", false)},
      {.window_s = options.quick ? 0.03 : 0.2, .windows = options.quick ? 7 : 15, .budget_s = options.quick ? 3 : 1e9});
  Row row = time_row(work.name + ", 2^20 values, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads"),
                     "time per call", "ms", comparison, same);
  char note[100];
  std::snprintf(note, sizeof note, "ns per value: ours %.2f, libtorch %.2f", 1e9 * comparison.ours().seconds() / values,
                1e9 * comparison.best_peer().seconds() / values);
  row.note = note;
  return row;
}

int run(const Options& options) {
  Report report("random", options);
  const int threads = at::get_num_threads();
  for (const Work& work : all_work()) {
    for (const int now : threads > 1 ? std::vector{1, threads} : std::vector{1}) {
      if (report.has_time_for(work.name)) report.add(measure(work, now, options));
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times operators that draw random numbers on the CPU, with one thread and with all threads. Compares "
      "the kernels\nof Bellows with those of libtorch. Before that, the values and the states of the "
      "generator are compared bit by bit.",
      run);
}
