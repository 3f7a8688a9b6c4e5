// The CUDA kernels and training steps on a GPU, against libtorch's operators and the bandwidth of the memory.
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bellows/amp/autocast.h"
#include "bellows/core/channels_last.h"
#include "bellows/core/model.h"
#include "bellows/models/bert.h"
#include "bellows/models/resnet.h"
#include "bellows/nn/activation.h"
#include "bellows/nn/cross_entropy.h"
#include "bellows/nn/dropout_norm.h"
#include "bellows/nn/norm.h"
#include "bellows/optim/optimizers.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

const c10::Device gpu(c10::kCUDA, 0);
using Unit = std::function<void()>;

/// A unit of work that only queues kernels. The time includes their execution.
Contestant on_gpu(std::string name, Unit unit) {
  return {std::move(name), [unit = std::move(unit)](int64_t n) {
            torch::cuda::synchronize();
            return seconds_of([&] {
              for (int64_t i = 0; i < n; ++i) unit();
              torch::cuda::synchronize();
            });
          }};
}

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return torch::randn(sizes, gpu).to(dtype);
}

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype) {
  return random(sizes, dtype).requires_grad_();
}

double allocated_peak_mib(const Unit& unit) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  const auto bytes = [] {
    return allocator::getDeviceStats(0)
        .allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  };
  unit();
  torch::cuda::synchronize();
  allocator::resetPeakStats(0);
  const auto before = bytes().current;
  unit();
  torch::cuda::synchronize();
  return static_cast<double>(bytes().peak - before) / (1 << 20);
}

/// Bytes per second of a copy within the GPU's memory; reads and writes count.
double measure_bandwidth() {
  const at::Tensor from = random({1 << 28}, at::kFloat), to = at::empty_like(from);
  const Comparison copies = compare({on_gpu("copy", [&] { to.copy_(from); })}, {.units = 20, .windows = 7});
  return 2.0 * static_cast<double>(from.nbytes()) / copies.ours().seconds();
}

class Table {
 public:
  explicit Table(double bandwidth) : bandwidth_(bandwidth) {
    std::printf("%-52s %-22s %10s %10s %8s %9s\n", "work", "peer", "ours", "peer", "speedup", "of limit");
  }
  /// Params: bytes – that the work has to move at least; 0: no limit is known
  void row(const std::string& work, double bytes, const std::vector<Contestant>& sides, int64_t units) {
    const Comparison result = compare(sides, {.units = units, .windows = 7, .warmup = 2});
    const double ours = result.ours().seconds();
    for (size_t i = 1; i < result.sides.size(); ++i) {
      const Side& peer = result.sides[i];
      std::printf("%-52s %-22s %7.3f ms %7.3f ms %7.2fx %8s\n", work.c_str(), peer.name.c_str(), ours * 1e3,
                  peer.seconds() * 1e3, result.speedup_over(peer).ratio,
                  bytes > 0 ? (std::to_string(static_cast<int>(100 * bytes / bandwidth_ / ours)) + " %").c_str() : "");
      std::fflush(stdout);
    }
  }

 private:
  double bandwidth_;
};

void norms(Table& table) {
  constexpr int64_t rows = 16384, columns = 4096;
  const double tensor = static_cast<double>(rows * columns) * 2;
  const at::Tensor x = leaf({rows, columns}, at::kBFloat16), weight = leaf({columns}, at::kBFloat16),
                   bias = leaf({columns}, at::kBFloat16), dy = random({rows, columns}, at::kBFloat16);
  const auto gradients = [&](const at::Tensor& y) { torch::autograd::grad({y}, {x, weight, bias}, {dy}); };
  table.row("layer norm forward, bf16 [16384, 4096]", 2 * tensor,
            {on_gpu("ours", [&] { nn::layer_norm(x.detach(), {columns}, weight.detach(), bias.detach()); }),
             on_gpu("libtorch", [&] { at::layer_norm(x.detach(), {columns}, weight.detach(), bias.detach()); })},
            30);
  table.row("layer norm forward + backward, bf16 [16384, 4096]", 5 * tensor,
            {on_gpu("ours", [&] { gradients(nn::layer_norm(x, {columns}, weight, bias)); }),
             on_gpu("libtorch", [&] { gradients(at::layer_norm(x, {columns}, weight, bias)); })},
            20);
  const auto rms_gradients = [&](const at::Tensor& y) { torch::autograd::grad({y}, {x, weight}, {dy}); };
  table.row("RMS norm forward + backward, bf16 [16384, 4096]", 5 * tensor,
            {on_gpu("ours", [&] { rms_gradients(nn::rms_norm(x, {columns}, weight)); }),
             on_gpu("libtorch", [&] { rms_gradients(at::rms_norm(x, {columns}, weight)); })},
            20);
  const at::Tensor residual = leaf({rows, columns}, at::kBFloat16);
  const auto all_gradients = [&](const at::Tensor& y) {
    torch::autograd::grad({y}, {x, residual, weight, bias}, {dy});
  };
  table.row(
      "dropout + add + layer norm, both ways, bf16", 9 * tensor,
      {on_gpu("ours", [&] { all_gradients(nn::dropout_add_norm(x, residual, weight, bias)); }),
       on_gpu("libtorch",
              [&] { all_gradients(at::layer_norm(at::dropout(x, 0.1, true) + residual, {columns}, weight, bias)); })},
      15);
}

void activations(Table& table) {
  constexpr int64_t rows = 8192, columns = 11008;
  const double tensor = static_cast<double>(rows * columns) * 2;
  const at::Tensor gate = leaf({rows, columns}, at::kBFloat16), up = leaf({rows, columns}, at::kBFloat16),
                   dy = random({rows, columns}, at::kBFloat16);
  const auto gradients = [&](const at::Tensor& y) { torch::autograd::grad({y}, {gate, up}, {dy}); };
  table.row("SwiGLU forward + backward, bf16 [8192, 11008]", 8 * tensor,
            {on_gpu("ours", [&] { gradients(nn::swiglu(gate, up)); }),
             on_gpu("libtorch", [&] { gradients(at::silu(gate) * up); })},
            15);
}

void cross_entropy(Table& table) {
  constexpr int64_t rows = 8192, classes = 50257, width = 1024;
  const at::Tensor target = torch::randint(classes, {rows}, at::TensorOptions(at::kLong).device(gpu));
  const at::Tensor logits = leaf({rows, classes}, at::kBFloat16);
  const auto gradient = [&](const at::Tensor& loss) { torch::autograd::grad({loss}, {logits}); };
  const Unit ours = [&] { gradient(nn::softmax_cross_entropy(logits, target)); };
  const Unit libtorch = [&] { gradient(at::cross_entropy_loss(logits.to(at::kFloat), target)); };
  table.row("cross-entropy, bf16 [8192, 50257], both ways", 3 * static_cast<double>(logits.nbytes()),
            {on_gpu("ours", ours), on_gpu("libtorch in fp32", libtorch),
             on_gpu("libtorch in bf16", [&] { gradient(at::cross_entropy_loss(logits, target)); })},
            10);
  std::printf("  memory: %.0f MiB, libtorch in fp32 %.0f MiB\n", allocated_peak_mib(ours),
              allocated_peak_mib(libtorch));
  const at::Tensor hidden = leaf({rows, width}, at::kBFloat16), weight = leaf({classes, width}, at::kBFloat16);
  const Unit linear = [&] {
    torch::autograd::grad({nn::linear_cross_entropy(hidden, weight, {}, target)}, {hidden, weight});
  };
  const Unit two_steps = [&] {
    torch::autograd::grad({at::cross_entropy_loss(at::linear(hidden, weight).to(at::kFloat), target)},
                          {hidden, weight});
  };
  table.row("linear + cross-entropy, width 1024, both ways", 0, {on_gpu("ours", linear), on_gpu("libtorch", two_steps)},
            5);
  std::printf("  memory: %.0f MiB, libtorch %.0f MiB\n", allocated_peak_mib(linear), allocated_peak_mib(two_steps));
}

/// 100 tensors with a million values each.
std::vector<at::Tensor> weights(at::ScalarType dtype) {
  std::vector<at::Tensor> result;
  for (int i = 0; i < 100; ++i) {
    result.push_back(leaf({1000, 1000}, dtype));
    result.back().mutable_grad() = random({1000, 1000}, dtype);
  }
  return result;
}

void optimizers(Table& table) {
  const double values = 1e8;
  const auto ours = [](at::ScalarType dtype, optim::AdamWOptions options) {
    options.lr = 1e-4;
    auto optimizer = std::make_shared<optim::AdamW>(weights(dtype), options);
    return on_gpu("ours", [optimizer] { optimizer->step(); });
  };
  const auto libtorch = std::make_shared<torch::optim::AdamW>(weights(at::kFloat), torch::optim::AdamWOptions(1e-4));
  const Contestant loop = on_gpu("torch::optim::AdamW", [&] { libtorch->step(); });
  table.row("AdamW, 100 M fp32 values", values * 28, {ours(at::kFloat, {}), loop}, 10);
  table.row("AdamW, 100 M bf16 values, fp32 master weights", values * (2 + 2 + 12 * 2),
            {ours(at::kBFloat16, {.master_weights = true}), loop}, 10);
  table.row("AdamW, 100 M bf16 values, 8-bit state, stochastic", values * (6 + 4),
            {ours(at::kBFloat16, {.state_dtype = optim::State::int8, .stochastic_rounding = true}), loop}, 10);
  table.row("AdamW, 100 M bf16 values, 4-bit state, stochastic", values * (6 + 2),
            {ours(at::kBFloat16, {.state_dtype = optim::State::int4, .stochastic_rounding = true}), loop}, 10);
}

/// A step of a model with libtorch's optimizer in fp32, or with ours in bf16.
template <class Libtorch, class Ours>
void model_steps(Table& table, const std::string& work, const std::function<Model()>& make, const at::Tensor& x,
                 int64_t classes) {
  const at::Tensor target = torch::randint(classes, {x.size(0)}, at::TensorOptions(at::kLong).device(gpu));
  const auto side = [&](const std::string& name, bool ours, bool bf16, const at::Tensor& input) {
    auto model = std::make_shared<Model>(make());
    model->to(gpu);
    if (input.dim() == 4 && bf16) to_channels_last(*model);
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    if (ours) {
      optimizer = std::make_shared<Ours>(model->parameters(), optim::AdamWOptions{.lr = 1e-4});
    } else {
      optimizer = std::make_shared<Libtorch>(model->parameters(), torch::optim::AdamWOptions(1e-4));
    }
    return on_gpu(name, [=] {
      optimizer->zero_grad();
      at::Tensor loss;
      {
        const amp::AutocastGuard guard(at::kCUDA, at::kBFloat16, bf16);
        loss = at::cross_entropy_loss(model->forward(input), target);
      }
      loss.backward();
      optimizer->step();
    });
  };
  const at::Tensor fast = x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
  table.row(work, 0,
            {side("ours", true, true, fast), side("plain libtorch, fp32", false, false, x),
             side("plain, bf16 autocast", false, true, fast), side("ours, fp32", true, false, x)},
            10);
}

int run(const Options& options) {
  torch::manual_seed(1);
  const double bandwidth = measure_bandwidth();
  std::printf("copy within the GPU's memory: %.0f GB/s\n", bandwidth / 1e9);
  Table table(bandwidth);
  norms(table);
  activations(table);
  cross_entropy(table);
  optimizers(table);
  model_steps<torch::optim::AdamW, optim::AdamW>(
      table, "BERT-base step, 32 x 128 tokens, AdamW", [] { return models::bert(models::bert_base()); },
      torch::randint(1000, {32, 128}, at::TensorOptions(at::kLong).device(gpu)), 2);
  if (!options.quick) {
    model_steps<torch::optim::AdamW, optim::AdamW>(
        table, "ResNet-50 step, 64 images, 224, AdamW", [] { return models::resnet50(); },
        torch::randn({64, 3, 224, 224}, gpu), 1000);
  }
  return 0;
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv, "The CUDA kernels and training steps on a GPU, against libtorch's operators.", run);
}
