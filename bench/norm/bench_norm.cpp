// LayerNorm and RMSNorm, forward and backward through autograd, against libtorch's in C++ and in Python.
#include <torch/torch.h>

#include <memory>

#include "bellows/nn/norm.h"
#include "bellows/system/allocator_reuse.h"
#include "bellows/tap/saved_tensor_tap.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr int64_t rows = 4096, columns = 768;
constexpr double eps = 1e-5;

struct Work {
  std::string norm;  ///< "layer_norm" or "rms_norm"
  at::ScalarType dtype;
  double tolerance;  ///< largest difference from the float64 result, relative to its largest value

  bool center() const { return norm == "layer_norm"; }
  std::string dtype_name() const { return dtype == at::kFloat ? "fp32" : "bf16"; }
};

std::vector<Work> all_work() {
  return {{"layer_norm", at::kFloat, 1e-5},
          {"layer_norm", at::kBFloat16, 2e-2},
          {"rms_norm", at::kFloat, 1e-5},
          {"rms_norm", at::kBFloat16, 2e-2}};
}

/// Tensors of one size; gradients of all inputs from a dense gradient of the output.
class NormStep {
 public:
  NormStep(const Work& work, bool ours) : work_(work), ours_(ours) {
    at::manual_seed(1);
    const auto random = [&](at::IntArrayRef sizes) { return torch::randn(sizes).to(work.dtype).requires_grad_(); };
    x_ = random({rows, columns});
    weight_ = random({columns});
    if (work.center()) bias_ = random({columns});
    dy_ = random({rows, columns}).detach();
  }

  void cast(at::ScalarType dtype) {
    for (at::Tensor* t : {&x_, &weight_, &bias_, &dy_}) {
      if (t->defined()) *t = t->detach().to(dtype).requires_grad_();
    }
    dy_ = dy_.detach();
  }

  at::Tensor forward() const {
    if (work_.center()) {
      return ours_ ? nn::layer_norm(x_, {columns}, weight_, bias_, eps)
                   : at::layer_norm(x_, {columns}, weight_, bias_, eps);
    }
    return ours_ ? nn::rms_norm(x_, {columns}, weight_, eps) : at::rms_norm(x_, {columns}, weight_, eps);
  }

  std::vector<at::Tensor> step() const {
    const at::Tensor y = forward();
    torch::autograd::variable_list inputs = {x_, weight_};
    if (bias_.defined()) inputs.push_back(bias_);
    auto result = torch::autograd::grad({y}, inputs, {dy_});
    result.push_back(y.detach());
    return result;
  }

  /// Bytes that autograd keeps for backward, beside parameters.
  int64_t saved_bytes() {
    class Counter : public tap::SavedTensorTap {
     public:
      std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
        bytes += static_cast<int64_t>(tensor.nbytes());
        return nullptr;
      }
      int64_t bytes = 0;
    };
    const at::Tensor leaf = x_;
    x_ = leaf * 1;  // as the output of an operator: leaves are not counted
    const auto counter = std::make_shared<Counter>();
    const tap::SavedTensorGuard guard(counter);
    const at::Tensor y = forward();
    x_ = leaf;
    return counter->bytes;
  }

  Contestant as_contestant(const std::string& name) const {
    return timed_contestant(name, [this] { step(); });
  }

 private:
  Work work_;
  bool ours_;
  at::Tensor x_, weight_, bias_, dy_;
};

/// Output and all gradients of ours against libtorch's in float64.
bool equal_to_exact(const Work& work) {
  const auto ours = NormStep(work, true).step();
  NormStep exact_step(work, false);
  exact_step.cast(at::kDouble);
  const auto exact = exact_step.step();
  bool equal = true;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double scale = exact[i].abs().max().item<double>();
    equal = equal && (ours[i].to(at::kDouble) - exact[i]).abs().max().item<double>() <= work.tolerance * scale;
  }
  return equal;
}

std::string note_of(double moved, double bandwidth, const Work& work) {
  char text[256];
  std::snprintf(text, sizeof text,
                "moves %.1f MB (x, y, x, dy, dx) at %.0f GB/s; saved for backward: ours %.2f MB, libtorch %.2f MB",
                moved / 1e6, bandwidth / 1e9, static_cast<double>(NormStep(work, true).saved_bytes()) / 1e6,
                static_cast<double>(NormStep(work, false).saved_bytes()) / 1e6);
  return text;
}

Row measure(const Work& work, const std::string& memory, const Options& options, PeerProcess* peer) {
  const bool equal = equal_to_exact(work);
  const NormStep ours(work, true), libtorch(work, false);
  std::vector<Contestant> sides = {ours.as_contestant("ours"), libtorch.as_contestant("libtorch")};
  if (peer) {
    sides.push_back({"Python", [&](int64_t n) {
                       peer->ask("use " + work.norm + " " + work.dtype_name());
                       return peer->run(n);
                     }});
  }
  const size_t bytes = size_t{rows} * columns * c10::elementSize(work.dtype);
  const auto bandwidth = [&] { return memory_bytes_per_s(4 * bytes); };  // x, y, dy and dx
  const double moved = 5.0 * static_cast<double>(bytes);
  const Comparison comparison = compare(sides, {.window_s = options.quick ? 0.1 : 0.5,
                                                .windows = options.quick ? 7 : 15,
                                                .budget_s = options.quick ? 10 : 1e9,
                                                .before_round = bandwidth});
  Row row = time_row(work.norm + " forward + backward, 4096x768, " + work.dtype_name() + memory, "time per step", "ms",
                     comparison, equal);
  row.limit = 1e3 * moved / bandwidth();
  row.note = note_of(moved, bandwidth(), work);
  return row;
}

int run(const Options& options) {
  Report report("norm", options);
  std::unique_ptr<PeerProcess> peer;
  if (!options.peer_python.empty()) {
    peer = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/norm.py", "--rows",
                                 std::to_string(rows), "--columns", std::to_string(columns)});
  }
  const auto measure_all = [&](const std::string& memory) {
    for (const Work& work : all_work()) {
      if (report.has_time_for(work.norm + " " + work.dtype_name() + memory))
        report.add(measure(work, memory, options, peer.get()));
    }
  };
  measure_all("");
  // Is it fresh memory that counts? Once more with what is freed kept, by ours and by libtorch.
  keep_freed_memory();
  measure_all(", freed memory kept");
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times forward and backward of LayerNorm and RMSNorm over 4096x768 through autograd, in fp32 and bf16. Compares "
      "Bellows with\nlibtorch in C++ and in Python. Before that, the results are compared with float64. Each task is "
      "also timed with freed\nmemory kept for reuse. The limit is the time to move the tensors at memory bandwidth.",
      run);
}
