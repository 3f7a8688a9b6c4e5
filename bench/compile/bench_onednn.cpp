// Networks of convolutions on oneDNN's primitives in its own order of memory, beside libtorch's operators one by one.
#include <torch/torch.h>

#include <memory>

#include "bellows/compile/onednn/onednn.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/recording/frozen.h"
#include "bellows/graph/recording/region.h"
#include "bellows/models/registry.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

using Call = std::function<at::Tensor()>;

/// oneDNN's primitives and nothing else: neither passes nor generated code.
class OnednnOnly : public graph::Backend {
 public:
  /// Params: frozen – tensors that keep their values, and outlive this
  explicit OnednnOnly(std::vector<at::Tensor> frozen) : frozen_(std::move(frozen)) {}

  std::shared_ptr<graph::Executable> prepare(graph::Program program, std::span<const c10::Storage> inputs) override {
    graph::functionalize(program);
    const graph::Remaining left = graph::freeze_inputs(program, inputs, graph::are_frozen(inputs, frozen_));
    report_ = compile_detail::use_onednn(program).to_text();
    return std::make_shared<graph::FrozenRunner>(std::move(program), left);
  }
  std::string to_text() const override { return report_; }

 private:
  std::vector<at::Tensor> frozen_;
  std::string report_;
};

struct Work {
  std::string name, model;
  std::vector<int64_t> sizes;
  bool training;
};

struct Made {
  Call call;
  std::vector<at::Tensor> state;
};

Made make(const Work& work) {
  torch::manual_seed(1);
  const models::ModelEntry& entry = models::registry().at(work.model);
  const Model model = entry.make(10, 3);
  const at::Tensor x = torch::randn(work.sizes);
  Made made;
  for (const auto& [name, tensor] : model.state_dict()) made.state.push_back(tensor);
  if (!work.training) {
    model.eval();
    made.call = [=] {
      const at::NoGradGuard no_grad;
      return model.forward(x);
    };
    return made;
  }
  const at::Tensor y = entry.output == models::OutputKind::pixel
                           ? torch::randint(0, 10, {work.sizes[0], work.sizes[2], work.sizes[3]})
                           : torch::randint(0, 10, {work.sizes[0]});
  auto optimizer =
      std::make_shared<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  made.call = [=] {
    optimizer->zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model.forward(x), y);
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
  return made;
}

/// Params: report – set to what was done
Call with_onednn(const Work& work, bool frozen, std::shared_ptr<OnednnOnly>& backend) {
  const Made made = make(work);
  backend = std::make_shared<OnednnOnly>(frozen ? made.state : std::vector<at::Tensor>{});
  const auto region = std::make_shared<graph::Region>(graph::RegionOptions{.backend = backend});
  return [=] {
    at::Tensor result;
    region->run([&] { result = made.call(); });
    return result;
  };
}

Row measure(const Work& work, const Options& options) {
  std::shared_ptr<OnednnOnly> backend;
  const Call ours = with_onednn(work, !work.training, backend), plain = make(work).call;
  bool equal = true;
  for (int call = 0; call < 5; ++call) equal = at::allclose(ours(), plain(), 1e-3, 1e-3) && equal;
  const Comparison all = compare({timed_contestant("oneDNN's order", ours), timed_contestant("libtorch", plain)},
                                 {.window_s = options.quick ? 0.3 : 1, .windows = options.quick ? 7 : 15});
  Row row = time_row(work.name, "time per call", "ms", all, equal);
  row.note = backend->to_text();
  return row;
}

int run(const Options& options) {
  Report report("onednn", options);
  for (const Work& work : {Work{"ResNet-18 step, batch 8, 64x64", "resnet18", {8, 3, 64, 64}, true},
                           Work{"ResNet-18 inference, batch 1, 224x224", "resnet18", {1, 3, 224, 224}, false},
                           Work{"UNet step, batch 2, 64x64", "unet", {2, 3, 64, 64}, true}})
    if (report.has_time_for(work.name)) report.add(measure(work, options));
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Times convolutional networks with oneDNN primitives in the memory layout of oneDNN, without "
                    "passes or generated code,\nagainst plain libtorch.",
                    run);
}
