// Model servers under load, in turns: ours, FastAPI with PyTorch or ONNX Runtime, and Triton Inference Server.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/export.h"
#include "bellows/models/formula_weights.h"
#include "bellows/quant.h"
#include "bellows/runtime.h"
#include "bellows/runtime/comparison.h"
#include "bellows/serve.h"
#include "bench/quant/inference_tasks.h"
#include "bench/serve/grpc_caller.h"
#include "bench/serve/served.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {
namespace {

constexpr int64_t elements = 1024, identity_clients = 16, classes = 10;
constexpr double least_sqnr_db = 12;

const InferenceTask& task_named(const std::string& name) {
  const auto& all = inference_tasks();
  return *std::ranges::find_if(all, [&](const InferenceTask& task) { return task.name == name; });
}

/// The repository of our server, and the requests for all servers.
class Models {
 public:
  void add_identity() {
    const at::Tensor x = models::formula_uniform("x", {1, elements}).to(at::kFloat);
    const auto identity = [](const std::vector<at::Tensor>& inputs) { return std::vector{inputs[0] * 1.0}; };
    export_program(identity, {x}, file("identity"),
                   {.input_names = {"x"}, .output_names = {"y"}, .dynamic_axes = DynamicAxes{}});
    configure("identity", "max_batch_size: 0");
    write_request(request("identity"), "x", x);
  }

  /// BERT with fixed sizes.
  /// Params: kind – fp32, bf16 or int8
  void add_bert(const std::string& task_name, const std::string& kind) {
    const InferenceTask& task = task_named(task_name);
    const auto inputs = calibration_of(task);
    Model model = model_of(task);
    if (kind == "int8") model = quant::quantize(model, {.method = quant::Method::static_range}, inputs).model;
    ProgramOptions options{.dynamic_axes = DynamicAxes{}};
    if (kind == "bf16") options.autocast = at::kBFloat16;
    export_program(model, inputs[0], file(task_name + "-" + kind), options);
    configure(task_name + "-" + kind, "max_batch_size: 0");
    write_request(request(task_name), "input_ids", inputs[0][0]);
  }

  /// BERT for batches of up to `most` samples.
  void add_batched_bert(const std::string& task_name, int64_t most) {
    const InferenceTask& task = task_named(task_name);
    const auto inputs = calibration_of(task);
    export_program(model_of(task), {inputs[0][0].repeat({2, 1})}, file(task_name + "-batched"),
                   {.dynamic_axes = DynamicAxes{{"input_ids", {{0, "batch"}}}}});
    std::string config =
        "max_batch_size: " + std::to_string(most) + " dynamic_batching { max_queue_delay_microseconds: 20000 }";
    for (int64_t rows = 1; rows <= most; ++rows) {  // a program is prepared for each size
      const std::string length = std::to_string(task.length);
      config += "\nmodel_warmup { name: \"rows" + std::to_string(rows) + "\" batch_size: " + std::to_string(rows) +
                " inputs { key: \"input_ids\" value { data_type: TYPE_INT64 dims: " + length + " zero_data: true } } }";
    }
    configure(task_name + "-batched", config);
    write_request(request(task_name), "input_ids", inputs[0][0]);
  }

  void start() {
    serve::ServerOptions options{.repository = folder_ / "models"};
    options.http.port = 0;
#ifdef BELLOWS_HAS_GRPC
    options.grpc = serve::GrpcOptions{.port = 0};
#endif
    server_ = std::make_unique<serve::Server>(options);
    server_->wait_until_loaded();
  }

  Served served(const std::string& name, const std::string& model, const std::string& request_name) const {
    return {name, "127.0.0.1:" + std::to_string(server_->port()), model, request(request_name)};
  }
  std::string grpc_address() const {
    return "127.0.0.1:" + std::to_string(server_->grpc_port());
  }
  std::string file(const std::string& model) const {
    const std::string folder = folder_ / ("models/" + model + "/1");
    std::filesystem::create_directories(folder);
    return folder + "/model.program";
  }
  std::string request(const std::string& name) const {
    return folder_ / (name + ".json");
  }
  std::string onnx(const std::string& task_name) const {
    const std::string path = folder_ / (task_name + ".onnx");
    const InferenceTask& task = task_named(task_name);
    if (!std::filesystem::exists(path))
      export_onnx(model_of(task), calibration_of(task)[0], path, {.dynamic_axes = DynamicAxes{}});
    return path;
  }

 private:
  void configure(const std::string& model, const std::string& text) const {
    std::ofstream(folder_ / ("models/" + model + "/config.pbtxt")) << text << "\n";
  }

  Folder folder_{};
  std::unique_ptr<serve::Server> server_{};
};

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options), report_("serve", options) {}

  int run() {
    const std::string only = options_.extra.at("row");
    const auto chosen = [&](const std::string& row) {
      return (only.empty() || only == row) && report_.has_time_for(row);
    };
    if (only.empty() || only == "identity") models_.add_identity();
    if (only.empty() || only == "batching") models_.add_batched_bert(batched_task, batch);
    if (only.empty() || only == "bert")
      for (const char* kind : {"fp32", "bf16", "int8"}) models_.add_bert(bert_task(), kind);
    models_.start();
    if (chosen("identity")) identity();
    if (chosen("batching")) batching();
    if (chosen("bert")) bert();
    return report_.finish();
  }

 private:
  static constexpr const char* batched_task = "bert-14";
  static constexpr int64_t batch = 4;
  std::string bert_task() const { return options_.quick ? "bert-14" : "bert-128"; }
  int rounds() const { return options_.quick ? 3 : 7; }

  /// Starts a peer, or notes why it cannot run.
  void add_peer(const std::string& name, const std::vector<std::string>& command, const std::string& model,
                const std::string& request) {
    if (command.front().empty()) return;
    try {
      const auto process = std::make_shared<PeerProcess>(command);
      const std::vector<double> ports = process->ask_numbers("port");
      const auto port = static_cast<int>(ports.at(0));
      if (ports.size() > 1) triton_grpc_ = "127.0.0.1:" + std::to_string(static_cast<int>(ports[1]));
      peers_.emplace_back(name, "127.0.0.1:" + std::to_string(port), model, models_.request(request), process);
    } catch (const c10::Error& error) {
      problems_ += (problems_.empty() ? "" : "; ") + name + ": " + user_message(error);
    }
  }
  std::string script(const std::string& name) const { return source_dir() + "/bench/peers/" + name; }

  /// Checks the answers of all servers.
  bool equal(const std::vector<const Served*>& all, const at::Tensor& expected, double tolerance) {
    bool result = true;
    for (const Served* one : all) {
      const auto found = runtime::difference_of({expected}, {one->answer(expected.sizes())});
      if (found.relative <= tolerance) continue;
      result = false;
      problems_ += (problems_.empty() ? "" : "; ") + one->name() + ": " + found.text;
    }
    return result;
  }

  void add(Row row, const std::string& note) {
    row.note = note + (problems_.empty() ? "" : "; " + problems_);
    report_.add(std::move(row));
  }

  void identity();
  void identity_grpc(const Contestant& bare, const at::Tensor& x);
  void batching();
  void bert();

  const Options& options_;
  Models models_;
  Report report_;
  std::vector<Served> peers_{};
  std::string problems_{}, triton_grpc_{};
};

std::string text_of(const char* format, double value) {
  char text[96];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// "82.1 us (quartiles 80.2 to 84.5)".
std::string added_text(const Side& with, const Side& without) {
  std::vector<double> added;
  for (size_t i = 0; i < with.windows.size(); ++i) added.push_back(1e6 * (with.windows[i] - without.windows[i]));
  return text_of("%.1f us", median(added)) + text_of(" (quartiles %.1f", quantile(added, 0.25)) +
         text_of(" to %.1f)", quantile(added, 0.75));
}

void Benchmark::identity() {
  const Served ours = models_.served("bellows", "identity", "identity");
  const std::string triton = options_.extra.at("triton-python"), number = std::to_string(elements);
  if (!triton.empty()) add_peer("triton", {triton, script("serve_triton.py"), number}, "identity", "identity");
  add_peer("fastapi", {options_.peer_python, script("serve_fastapi.py"), "torch", "identity"}, "identity", "identity");
  const at::Tensor x = models::formula_uniform("x", {1, elements}).to(at::kFloat);
  std::vector<const Served*> all{&ours};
  for (const Served& peer : peers_) all.push_back(&peer);
  const bool same = equal(all, x, 0);

  const double window = options_.quick ? 0.5 : 1;
  const std::shared_ptr<runtime::InferenceModel> model = runtime::backend("program").load(models_.file("identity"));
  std::vector<Contestant> latencies, rates;
  for (const Served* one : all) latencies.push_back(one->latency(window));
  latencies.push_back({"bare call", [&](int64_t) {
                         constexpr int calls = 2000;
                         return seconds_of([&] {
                                  for (int i = 0; i < calls; ++i) model->run({&x, 1});
                                }) /
                                calls;
                       }});
  Comparison found = compare(latencies, {.units = 1, .windows = rounds()});
  const Side bare = found.sides.back();
  found.sides.pop_back();
  Row row = time_row("identity 4 kB over HTTP, 1 client", "median latency", "us", found, same);
  row.limit = 1e6 * bare.seconds();
  add(std::move(row), "limit: the bare call; HTTP adds " + added_text(found.sides[0], bare));

  double cost = 0;
  for (const Served* one : all)
    rates.push_back(one->throughput(identity_clients, window, [&, one](const serve::LevelResult& result) {
      if (one == &ours) cost = result.client_s;
    }));
  const Comparison rate = compare(rates, {.units = 1, .windows = rounds()});
  add(rate_row("identity 4 kB over HTTP, 16 clients", "requests per second", "1/s", rate, same),
      text_of("the client uses %.1f us of CPU time per request", 1e6 * cost));
#ifdef BELLOWS_HAS_GRPC
  identity_grpc(latencies.back(), x);
#endif
  peers_.clear();
  problems_.clear();
}

#ifdef BELLOWS_HAS_GRPC
/// Params: bare – the call of the model without a server
void Benchmark::identity_grpc(const Contestant& bare, const at::Tensor& x) {
  const std::vector<float> values(x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel());
  std::vector<Contestant> sides;
  bool same = true;
  const double window = options_.quick ? 0.5 : 1;
  const auto add_side = [&](const std::string& name, const std::function<void()>& call) {
    sides.push_back({name, [call, window](int64_t) {
                       std::vector<double> times;
                       const auto begin = std::chrono::steady_clock::now();
                       while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < window)
                         times.push_back(seconds_of(call));
                       return median(times);
                     }});
  };
  const auto add_server = [&](const std::string& name, const std::string& address) {
    const auto caller = std::make_shared<GrpcCaller>(address, "identity", values);
    same = same && caller->infer() == values;
    add_side(name, [caller] { caller->infer(); });
    return caller;
  };
  const auto ours = add_server("bellows", models_.grpc_address());
  if (!triton_grpc_.empty()) add_server("triton", triton_grpc_);
  add_side("call without a model", [ours] { ours->live(); });
  sides.push_back(bare);
  Comparison found = compare(sides, {.units = 1, .windows = rounds()});
  const Side bare_side = found.sides.back();
  found.sides.pop_back();
  const std::string added = added_text(found.sides[0], bare_side);
  Row row = time_row("identity 4 kB over gRPC, 1 client", "median latency", "us", found, same);
  row.limit = 1e6 * bare_side.seconds();
  add(std::move(row), "limit: the bare call; gRPC adds " + added);
}
#endif

void Benchmark::batching() {
  const Served ours = models_.served("bellows", std::string(batched_task) + "-batched", batched_task);
  const at::Tensor ids = calibration_of(task_named(batched_task))[0][0], many = ids.repeat({batch, 1});
  const std::shared_ptr<runtime::InferenceModel> model =
      runtime::backend("program").load(models_.file(std::string(batched_task) + "-batched"));
  const at::Tensor expected = model->run({&ids, 1})[0];
  const bool same = equal({&ours}, expected, 1e-5);
  std::vector<double> p99, batches;
  const double window = options_.quick ? 1 : 3;
  const auto calls = [&](const at::Tensor& input, int64_t rows) {
    return [&model, input, rows, window](int64_t) {
      int64_t done = 0;
      const auto start = std::chrono::steady_clock::now();
      std::chrono::duration<double> passed{};
      for (; passed.count() < window; passed = std::chrono::steady_clock::now() - start) {
        model->run({&input, 1});
        done += rows;
      }
      return passed.count() / static_cast<double>(done);
    };
  };
  const auto seen = [&](const serve::LevelResult& result) {
    p99.push_back(result.latency.p99_s);
    if (result.server) batches.push_back(result.server->batch_size);
  };
  Comparison found = compare({ours.throughput(batch, window, seen),
                              {"offline batches of 4", calls(many, batch)},
                              {"offline, one by one", calls(ids, 1)}},
                             {.units = 1, .windows = rounds()});
  const Side single = found.sides[2];
  found.sides.pop_back();
  const double ratio = median(p99) / single.seconds();
  add(rate_row("BERT-base 14 tokens, fp32, dynamic batching, 4 clients", "samples per second", "1/s", found, same),
      text_of("p99 %.1f ms", 1e3 * median(p99)) + text_of(", %.2f times the latency of one sample", ratio) +
          text_of(" (%.1f ms)", 1e3 * single.seconds()) +
          (batches.empty() ? "" : text_of("; %.2f samples per batch", median(batches))));
}

void Benchmark::bert() {
  const std::string task = bert_task(), about = task_named(task).about;
  add_peer("fastapi + torch fp32", {options_.peer_python, script("serve_fastapi.py"), "torch", task}, task, task);
  add_peer("fastapi + onnxruntime fp32",
           {options_.peer_python, script("serve_fastapi.py"), "onnxruntime", task, models_.onnx(task)}, task, task);
  at::Tensor expected;
  {
    const torch::NoGradGuard no_gradients;
    expected = model_of(task_named(task)).forward_all(calibration_of(task_named(task))[0]).at(0);
  }
  const Served fp32 = models_.served("bellows fp32", task + "-fp32", task),
               bf16 = models_.served("bellows bf16", task + "-bf16", task),
               int8 = models_.served("bellows int8", task + "-int8", task);
  std::vector<const Served*> full{&fp32};
  for (const Served& peer : peers_) full.push_back(&peer);
  const bool same = equal(full, expected, 1e-3), close = equal({&bf16}, expected, 5e-2);
  const double level = quant::sqnr(expected.to(at::kDouble), int8.answer({1, classes}).to(at::kDouble));
  std::vector<Contestant> sides;
  const double window = options_.quick ? 1 : 3;
  for (const Served* one : std::vector<const Served*>{&int8, &bf16}) sides.push_back(one->latency(window));
  for (const Served* one : full) sides.push_back(one->latency(window));
  const Comparison found = compare(sides, {.units = 1, .windows = options_.quick ? 2 : 5});
  for (size_t i = 0; i < 3; ++i) {
    Comparison one{.sides = {found.sides[i]}, .units = 1};
    for (size_t peer = 3; peer < found.sides.size(); ++peer) one.sides.push_back(found.sides[peer]);
    const char* kind = i == 0 ? "int8" : i == 1 ? "bf16" : "fp32";
    add(time_row(about + " over HTTP, " + kind + ", 1 client", "median latency", "ms", one,
                 i == 0 ? level >= least_sqnr_db : same && close),
        i == 0 ? text_of("against eager fp32: %.0f dB", level) : "peers compute in fp32");
  }
  peers_.clear();
}

int run(const Options& options) {
  return Benchmark(options).run();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Measures model servers under load, in turns: ours, FastAPI with PyTorch or ONNX Runtime, and Triton "
      "Inference Server.\n--row: one of identity, batching and bert. --triton-python: Python with "
      "nvidia-pytriton.",
      run, {{"row", ""}, {"triton-python", ""}});
}
