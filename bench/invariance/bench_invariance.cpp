// The cost of `batch_invariant` for BERT-base at eight load levels, and whether all answers have the same bits.
#include <torch/torch.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "bellows/core/error.h"
#include "bellows/export.h"
#include "bellows/quant.h"
#include "bellows/serve/loaded_model.h"
#include "bench/quant/inference_tasks.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

using serve::InferenceResult;
using serve::LoadedModel;
using serve::PendingRequest;

constexpr int64_t max_batch = 8, requests_per_level = 125;
const std::vector<int> load_levels{1, 2, 3, 4, 6, 8, 12, 16};
constexpr int timed_level = 8;

/// One request: the task's input with other tokens.
std::vector<at::Tensor> request_inputs(const std::vector<at::Tensor>& example, int64_t index) {
  std::vector<at::Tensor> inputs = example;
  inputs[0] = (example[0] * 31 + index * 17).remainder(20000) + 1;
  return inputs;
}

std::string bytes_of(const std::vector<at::Tensor>& outputs) {
  std::string all;
  for (const at::Tensor& output : outputs) {
    const at::Tensor plain = output.contiguous();
    all.append(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  }
  return all;
}

/// Sends requests to a model from several threads. Each thread waits for an answer before it sends the next request.
class Clients {
 public:
  Clients(LoadedModel& model, std::vector<at::Tensor> example) : model_(model), example_(std::move(example)) {}

  void run(int level, int64_t requests) {
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < level; ++i) {
      threads.emplace_back([&] {
        for (int64_t index = next++; index < requests; index = next++) ask(index % 16);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Returns whether each request has always received the same bits.
  bool equal() const { return equal_; }
  int64_t answers() const { return answers_; }

 private:
  void ask(int64_t index) {
    std::promise<InferenceResult> promise;
    PendingRequest request{.inputs = request_inputs(example_, index),
                           .times = {.received = serve::Clock::now()},
                           .done = [&](InferenceResult result) { promise.set_value(std::move(result)); }};
    TORCH_CHECK(model_.submit(request) == serve::Scheduler::Submitted::queued, "the queue is full");
    const InferenceResult result = promise.get_future().get();
    TORCH_CHECK(!result.error, "a request failed: ", result.error ? result.error->what() : "");
    const std::string bytes = bytes_of(result.outputs);
    const std::lock_guard lock(mutex_);
    ++answers_;
    equal_ = equal_ && answers_of_.emplace(index, bytes).first->second == bytes;
  }

  LoadedModel& model_;
  const std::vector<at::Tensor> example_;
  std::mutex mutex_;
  std::map<int64_t, std::string> answers_of_{};
  int64_t answers_ = 0;
  bool equal_ = true;
};

std::unique_ptr<LoadedModel> load(const std::string& path, bool invariant) {
  std::vector<std::string> warnings;
  std::string text = "name: \"net\" max_batch_size: " + std::to_string(max_batch) + " dynamic_batching { }";
  if (invariant) text += " parameters { key: \"batch_invariant\" value: { string_value: \"true\" } }";
  auto config = serve::parse_model_config(text, "config", warnings);
  return std::make_unique<LoadedModel>(std::move(config), path, "1", serve::runtime_loader(), serve::LoadModelOptions{},
                                       std::make_shared<serve::ModelStatistics>());
}

Row measure(const InferenceTask& task, const std::string& kind, const Options& options) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "bench-invariance";
  std::filesystem::create_directories(folder);
  const std::string file = folder / "net.program";
  const auto calibration = calibration_of(task);
  std::vector<at::Tensor> example = calibration[0], twice;
  Model model = model_of(task);
  if (kind == "int8") model = quant::quantize(model, {.method = quant::Method::static_range}, calibration).model;
  for (const at::Tensor& input : example) twice.push_back(at::cat({input, input}));
  export_program(model, twice, file);
  const auto invariant = load(file, true), plain = load(file, false);
  std::filesystem::remove_all(folder);

  Clients checked(*invariant, example), unchecked(*plain, example);
  for (const int level : load_levels) {
    checked.run(level, requests_per_level);
    unchecked.run(level, options.quick ? 16 : requests_per_level);
  }
  const auto side = [](const char* name, Clients& clients) {
    return Contestant{name, [&clients](int64_t n) { return seconds_of([&] { clients.run(timed_level, n); }); }};
  };
  const Comparison all = compare({side("batch_invariant", checked), side("without", unchecked)},
                                 {.units = 32, .windows = options.quick ? 3 : 11});
  Row row = time_row(task.about + ", " + kind + ", 8 clients", "time per request", "ms", all, checked.equal());
  row.note = c10::str(checked.answers(), " answers at ", load_levels.size(), " load levels, bits ",
                      checked.equal() ? "equal" : "DIFFERENT", "; without batch_invariant: bits ",
                      unchecked.equal() ? "equal" : "different");
  return row;
}

int run(const Options& options) {
  Report report("invariance", options);
  for (const InferenceTask& task : inference_tasks()) {
    for (const std::string kind : {"fp32", "int8"}) {
      if (!task.is_text()) continue;
      if (!options.extra.at("task").empty() && options.extra.at("task") != task.name) continue;
      if (!options.extra.at("dtype").empty() && options.extra.at("dtype") != kind) continue;
      if (report.has_time_for(task.name + " " + kind)) report.add(measure(task, kind, options));
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
      "Sends requests to BERT-base at eight load levels, and compares the bits of the answers and the time "
      "with and without `batch_invariant`.\n--task: bert-128 or bert-14. --dtype: fp32 or int8.",
      run, {{"task", ""}, {"dtype", ""}});
}
