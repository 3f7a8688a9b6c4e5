// What a call of a compiled function takes beside a plain one: followed and run in order, and recorded.
#include <torch/torch.h>

#include <memory>

#include "bellows/compile.h"
#include "bench/compile/tools.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

/// A function of its own state, made anew for each side; it returns a figure of what it computed.
struct Work {
  std::string name;
  std::function<std::function<at::Tensor()>()> make;
};

Work chain_of_additions() {
  return {"1000 additions of 16 numbers", [] {
            const at::Tensor x = torch::ones({16});
            return [x] {
              const at::NoGradGuard no_grad;
              at::Tensor sum = x;
              for (int i = 0; i < 1000; ++i) sum = sum + x;
              return sum;
            };
          }};
}

Work small_step() {
  return {"8 layers of 64, batch 32, AdamW step", [] {
            namespace nn = torch::nn;
            torch::manual_seed(1);
            nn::Sequential net;
            for (int i = 0; i < 8; ++i) {
              net->push_back(nn::Linear(64, 64));
              net->push_back(nn::GELU());
            }
            net->push_back(nn::Linear(64, 10));
            const at::Tensor x = torch::randn({32, 64}), y = torch::randint(0, 10, {32});
            auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
            return std::function<at::Tensor()>([=]() mutable {
              optimizer->zero_grad();
              const at::Tensor loss = nn::functional::cross_entropy(net->forward(x), y);
              loss.backward();
              optimizer->step();
              return loss.detach();
            });
          }};
}

Row measure(const Work& work, const Options& options) {
  const CompileOptions in_order{.generate = false};
  auto followed = compile(work.make(), in_order);
  const auto plain = work.make(), recorded = work.make();
  bool equal = true;
  for (int call = 0; call < 4; ++call) equal = at::equal(followed(), plain()) && equal;
  const Comparison all = compare({timed_contestant("followed", followed), timed_contestant("plain", plain),
                                  timed_contestant("recorded", [=] { return compile(recorded, in_order)(); })},
                                 {.window_s = options.quick ? 0.2 : 0.5, .windows = options.quick ? 5 : 15});
  Row row = time_row(work.name, "time per call", "us", all, equal);
  size_t operators = 0;
  for (const auto& recording : followed.recordings())
    operators = std::max(operators, recording.program.instructions.size());
  row.note = c10::str(operators, " operators; added time per operator: followed ",
                      1e6 * (all.sides[0].seconds() - all.sides[1].seconds()) / static_cast<double>(operators),
                      " us, recorded ",
                      1e6 * (all.sides[2].seconds() - all.sides[1].seconds()) / static_cast<double>(operators), " us");
  return row;
}

int run(const Options& options) {
  if (!options.extra.at("ready-of").empty()) return serve_ready(options.extra.at("ready-of"));
  Report report("compile", options);
  const int threads = at::get_num_threads();
  if (options.extra.at("task").empty()) {
    at::set_num_threads(1);
    for (const Work& work : {chain_of_additions(), small_step()}) report.add(measure(work, options));
    at::set_num_threads(threads);
  }
  add_tool_rows(report, options);
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times a call of a compiled function, once followed and once recorded, against the plain call, on one\nthread. "
      "Then times forward passes and training steps of complete models: compiled, plain, and with the\ncompilers of "
      "Python.\n--task: one of resnet18, bert-128, bert-14, unet, step-resnet18, step-bert and step-unet. Append -bf16 "
      "to\nrun the task with bf16 autocast. --bf16 1: run all tasks with bf16 autocast, too. --tools A,B: only "
      "these\nPython tools, or none. --seconds: length of a window in seconds. --markdown FILE: write a table "
      "for\nbench/results. --ready-of NAME: internal; the benchmark starts itself with this option.",
      run, {{"task", ""}, {"bf16", "0"}, {"tools", "all"}, {"seconds", "1"}, {"markdown", ""}, {"ready-of", ""}});
}
