// The fused layers of the component nn, forward and backward through autograd, against libtorch's operators one after the other in
// C++ and in Python: time, and the most memory that a step takes.
#include <torch/torch.h>

#include <functional>
#include <memory>

#include "bellows/nn/activation.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/dropout_norm.h"
#include "bellows/system/allocator_reuse.h"
#include "bellows/tap/allocator.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

using Inputs = std::vector<at::Tensor>;
using Layer = std::function<at::Tensor(const Inputs&)>;

/// One layer, by ours and by libtorch's operators. Its result is a scalar, or gets a dense gradient.
struct Work {
  std::string name;  ///< of the row, and of the peer's step
  std::string shape;
  std::function<Inputs()> inputs;
  Layer ours, libtorch;
  bool random = false;  ///< drops other values in each implementation: nothing to compare
};

constexpr int64_t tokens = 1024, width = 768, inner = 3072, words = 30522;

Inputs trainable(const std::vector<std::vector<int64_t>>& sizes, double scale = 1) {
  at::manual_seed(1);
  Inputs result;
  result.reserve(sizes.size());
  for (const auto& size : sizes) result.push_back((torch::randn(size) * scale).requires_grad_());
  return result;
}

std::vector<Work> all_work() {
  at::manual_seed(2);
  const at::Tensor target = torch::randint(words, {tokens}, at::kLong);
  const std::string rows = std::to_string(tokens);
  const auto head = [] { return trainable({{tokens, width}, {words, width}}, 0.1); };
  const auto linear_loss = [target](const Inputs& t) {
    return at::cross_entropy_loss(at::linear(t[0], t[1]), target, {}, 1, -100, 0.0);
  };
  return {
      {"linear_cross_entropy", rows + "x768 to 30522", head,
       [target](const Inputs& t) { return nn::linear_cross_entropy(t[0], t[1], {}, target); }, linear_loss},
      {"linear_cross_entropy", rows + "x768 to 30522, 8192 classes at a time", head,
       [target](const Inputs& t) {
         return nn::linear_cross_entropy(t[0], t[1], {}, target, {.chunk = 256, .vocabulary_chunk = 8192});
       },
       linear_loss},
      {"softmax_cross_entropy", rows + "x30522",
       [] {
         return trainable({{tokens, words}});
       },
       [target](const Inputs& t) { return nn::softmax_cross_entropy(t[0] * 1, target, {.overwrite_logits = true}); },
       [target](const Inputs& t) { return at::cross_entropy_loss(t[0] * 1, target, {}, 1, -100, 0.0); }},
      {"gelu_linear", rows + "x3072 to 768",
       [] {
         return trainable({{tokens, inner}, {width, inner}, {width}});
       },
       [](const Inputs& t) { return nn::gelu_linear(t[0], t[1], t[2]); },
       [](const Inputs& t) { return at::linear(at::gelu(t[0]), t[1], t[2]); }},
      {"swiglu", rows + "x3072",
       [] {
         return trainable({{tokens, inner}, {tokens, inner}});
       },
       [](const Inputs& t) { return nn::swiglu(t[0], t[1]); }, [](const Inputs& t) { return at::silu(t[0]) * t[1]; }},
      {"dropout_add_norm", rows + "x768",
       [] {
         return trainable({{tokens, width}, {tokens, width}, {width}, {width}});
       },
       [](const Inputs& t) { return nn::dropout_add_norm(t[0], t[1], t[2], t[3]); },
       [](const Inputs& t) { return at::layer_norm(at::dropout(t[0], 0.1, true) + t[1], {width}, t[2], t[3]); }, true}};
}

/// The result and the gradients of all inputs.
Inputs step(const Layer& layer, const Inputs& inputs) {
  const at::Tensor y = layer(inputs);
  Inputs result = torch::autograd::grad({y}, inputs, {torch::ones_like(y)});
  result.push_back(y.detach());
  return result;
}

bool equal(const Work& work, const Inputs& inputs) {
  if (work.random) return true;  // tests/nn/dropout_norm_test.cpp compares, with the same mask
  const Inputs ours = step(work.ours, inputs), theirs = step(work.libtorch, inputs);
  bool all = true;
  for (size_t i = 0; i < ours.size(); ++i) {
    all = all && (ours[i] - theirs[i]).abs().max().item<double>() <= 1e-4 * theirs[i].abs().max().item<double>();
  }
  return all;
}

int64_t peak_bytes(const Layer& layer, const Inputs& inputs) {
  tap::install_cpu_allocator();
  tap::reset_cpu_allocation_peak();
  const int64_t before = tap::cpu_allocation_counters().current_bytes;
  step(layer, inputs);
  return tap::cpu_allocation_counters().peak_bytes - before;
}

Row measure(const Work& work, const Options& options, PeerProcess* peer) {
  const Inputs inputs = work.inputs();
  std::vector<Contestant> sides = {timed_contestant("ours", [&] { step(work.ours, inputs); }),
                                   timed_contestant("libtorch", [&] { step(work.libtorch, inputs); })};
  if (peer) {
    sides.push_back({"Python", [&](int64_t n) {
                       peer->ask("use " + work.name);
                       return peer->run(n);
                     }});
  }
  const bool same = equal(work, inputs);
  const Comparison comparison = compare(
      sides,
      {.window_s = options.quick ? 0.1 : 0.5, .windows = options.quick ? 5 : 11, .budget_s = options.quick ? 8 : 1e9});
  Row row = time_row(work.name + ", " + work.shape + ", fp32", "time per step", "ms", comparison, same);
  char text[128];
  std::snprintf(text, sizeof text, "peak memory: ours %.1f MB, libtorch %.1f MB",
                static_cast<double>(peak_bytes(work.ours, inputs)) / 1e6,
                static_cast<double>(peak_bytes(work.libtorch, inputs)) / 1e6);
  row.note = text;
  return row;
}

int run(const Options& options) {
  Report report("fused", options);
  std::unique_ptr<PeerProcess> peer;
  if (!options.peer_python.empty()) {
    peer = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/fused.py"});
  }
  keep_freed_memory();
  for (const Work& work : all_work()) {
    if (report.has_time_for(work.name)) report.add(measure(work, options, peer.get()));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times forward and backward in fp32 of cross-entropy with 30522 classes (with and without the linear layer), "
      "GELU, SwiGLU,\nand dropout with residual and norm. Compares the fused layers with libtorch's operators in C++ "
      "and in Python. Before\nthat, the results are compared. Freed memory is kept for reuse.",
      run);
}
