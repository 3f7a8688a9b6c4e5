// Inference of GPT-2 with weights in memory, and with weights that are read from a file in each batch.
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "bellows/core/grad_mode.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/models/formula_weights.h"
#include "bellows/models/gpt.h"
#include "bellows/parallel/placement/streamed_weights.h"
#include "bellows/tap/skip_initialization.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr int64_t words = 50257, length = 128;

Model make_gpt(const Options& options) {
  return models::gpt({.vocab_size = words, .n_layer = options.quick ? 6 : 12});
}

/// A folder that is deleted at the end.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::temp_directory_path() / "bellows-bench-XXXXXX") {
    std::string name = path_.string();
    TORCH_CHECK(mkdtemp(name.data()), "Cannot create a temporary folder.");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

void save(const Model& model, const std::string& file) {
  NamedTensors tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : model.state_dict()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) tensors.emplace_back(name, tensor.detach());
  }
  io::save_safetensors(file, tensors);
}

/// A model with part of its weights in memory.
struct Streamed {
  std::string name;
  std::unique_ptr<parallel::StreamedWeights> weights;
};

/// Params: share – of the weights, in memory; 0: the least that works with prefetching
Streamed stream(const Options& options, const std::string& file, double share) {
  std::optional<Model> model;
  {
    const tap::SkipInitialization no_memory;
    model = make_gpt(options);
  }
  model->eval();
  int64_t bytes = 0, largest = 0;
  for (const auto& module : parallel::infer_device_map(*model, {.device_bytes = int64_t{1} << 40}).modules) {
    bytes += module.bytes;
    largest = std::max(largest, module.bytes);
  }
  const auto budget = std::max(largest, static_cast<int64_t>(share * static_cast<double>(bytes)));
  auto weights = std::make_unique<parallel::StreamedWeights>(
      *model, parallel::StreamedWeightsOptions{.file = file, .memory_bytes = budget});
  char name[64];
  std::snprintf(name, sizeof name, "streamed, %.0f of %.0f MB", static_cast<double>(budget) / 1e6,
                static_cast<double>(bytes) / 1e6);
  return {name, std::move(weights)};
}

Row measure(const Model& resident, const std::vector<Streamed>& streamed, PeerProcess* peer, int64_t batch,
            const Options& options) {
  const no_grad no_graph;
  const at::Tensor ids = models::formula_labels("ids", batch * length, words).view({batch, length});
  const at::Tensor expected = resident.forward(ids);
  bool equal = true;
  std::vector<Contestant> sides;
  for (const Streamed& one : streamed) {
    const Model model = one.weights->model();
    equal = equal && at::equal(model.forward(ids), expected);
    sides.push_back(timed_contestant(one.name, [model, ids] { model.forward(ids); }));
  }
  sides.push_back(timed_contestant("resident", [resident, ids] { resident.forward(ids); }));
  if (peer) {
    peer->ask("batch " + std::to_string(batch), 600);
    sides.push_back(peer->as_contestant("accelerate disk_offload"));
  }
  const Comparison comparison =
      compare(sides, {.units = 1, .windows = options.quick ? 5 : 11, .budget_s = options.quick ? 12. : 120.});
  return time_row("gpt2, batch " + std::to_string(batch) + " x " + std::to_string(length) + " tokens, fp32",
                  "time per batch", "ms", comparison, equal);
}

int run(const Options& options) {
  Report report("placement", options);
  const Scratch folder;
  const std::string file = folder.path() + "/gpt2.safetensors";
  const Model resident = make_gpt(options);
  models::set_formula_weights(resident);
  resident.eval();
  save(resident, file);
  std::vector<Streamed> streamed;
  for (const double share : {0.6, 0.0}) streamed.push_back(stream(options, file, share));
  std::unique_ptr<PeerProcess> peer;
  if (!options.peer_python.empty()) {
    peer = std::make_unique<PeerProcess>(
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/placement.py",
                                 options.quick ? "6" : "12", folder.path() + "/offload"});
  }
  for (const int64_t batch : {1, 8}) {
    if (report.has_time_for("gpt2")) report.add(measure(resident, streamed, peer.get(), batch, options));
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times the forward pass of GPT-2 with all weights in memory, and with 60 % or less of the weights in\n"
      "memory. The other weights are read from a safetensors file in each batch. The file is usually in\n"
      "the page cache of the system, so the times do not include the disk. The Python peer is\n"
      "accelerate's disk_offload, which reads all weights in each batch.",
      run);
}
