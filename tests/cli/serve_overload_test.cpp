// `bellows serve` at several times its capacity, with models that throw, models that are replaced, slow clients and
// clients that disconnect. Each answer is checked. BELLOWS_SLOW=1 runs it for ten minutes.
#include <gtest/gtest.h>
#include <torch/script.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/process.h"
#include "tests/serve/raw_client.h"
#include "tests/support/slow_tests.h"

namespace bellows::cli {

namespace {

using serve::RawClient;
using serve::RawResponse;
using Clock = std::chrono::steady_clock;

constexpr int64_t width = 96, pool_size = 48;
constexpr int client_count = 40, max_queue = 16;

/// Writes a TorchScript model: three layers, and an error if the first value of a row is below -100.
void write_model(const std::string& path, uint64_t seed) {
  torch::manual_seed(seed);
  torch::jit::Module net("Net");
  for (const char* name : {"first", "second", "third"})
    net.register_parameter(name, torch::randn({width, width}) * 0.1, /*is_buffer=*/false);
  net.define(R"(
    def forward(self, x):
      assert not bool((x[:, 0] < -100).any()), "injected fault"
      x = torch.relu(torch.matmul(x, self.first))
      for i in range(40):
        x = torch.tanh(torch.matmul(x, self.second))
      return torch.softmax(torch.matmul(x, self.third), 1)
  )");
  const std::string temporary = path + ".new";
  net.save(temporary);
  std::filesystem::rename(temporary, path);
}

/// One of the requests that are sent again and again.
struct Question {
  std::string body;  ///< the whole HTTP request
  int64_t rows;
  bool faulty;
};

Question question(int64_t index) {
  const int64_t rows = 1 + index % 3;
  torch::manual_seed(static_cast<uint64_t>(1000 + index));
  const torch::Tensor x = torch::randn({rows, width});
  const bool faulty = index % 12 == 11;
  if (faulty) x[0][0] = -1000;
  const nlohmann::json head = {{"inputs",
                                {{{"name", "x"},
                                  {"datatype", "FP32"},
                                  {"shape", {rows, width}},
                                  {"parameters", {{"binary_data_size", x.nbytes()}}}}}},
                               {"outputs", {{{"name", "output"}, {"parameters", {{"binary_data", true}}}}}}};
  const std::string text = head.dump();
  const std::string body = text + std::string(static_cast<const char*>(x.const_data_ptr()), x.nbytes());
  return {serve::post("/v2/models/net/infer", body,
                      "Inference-Header-Content-Length: " + std::to_string(text.size()) + "\r\n"),
          rows, faulty};
}

/// Sends requests from many threads, and checks the answers.
class Load {
 public:
  explicit Load(uint16_t port) : port_(port) {
    for (int64_t i = 0; i < pool_size; ++i) questions_.push_back(question(i));
  }

  /// Sends one request after another.
  void ask(int client) {
    std::unique_ptr<RawClient> connection;
    for (uint64_t turn = 0; !stop_; ++turn) {
      const size_t index = (static_cast<size_t>(client) * 7 + turn) % questions_.size();
      if (!connection) connection = std::make_unique<RawClient>(port_);
      if (!connection->send(questions_[index].body)) {
        connection.reset();
        continue;
      }
      if (client % 8 == 7 && turn % 5 == 4) {
        connection->reset();  // without waiting for the answer
        connection.reset();
        ++cut;
        continue;
      }
      const RawResponse response = connection->receive();
      check(index, response);
      if (response.status == 503) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (response.status == 0) connection.reset();
    }
  }

  /// Sends requests in small pieces.
  void ask_slowly() {
    while (!stop_) {
      RawClient connection(port_);
      const std::string& body = questions_[0].body;
      for (size_t at = 0; at < body.size() && !stop_; at += 50) {
        connection.send(std::string_view(body).substr(at, 50));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

  void stop() { stop_ = true; }
  bool stopped() const { return stop_; }
  std::vector<std::string> problems() {
    const std::lock_guard lock(mutex_);
    return problems_;
  }

  std::atomic<int64_t> answered{0}, rejected{0}, failed{0}, cut{0};

 private:
  void check(size_t index, const RawResponse& response) {
    const Question& asked = questions_[index];
    if (response.status == 503) {
      ++rejected;
      if (!response.headers.contains("retry-after")) problem("status 503 without Retry-After");
    } else if (asked.faulty) {
      ++failed;
      if (response.status != 400 || response.body.find("injected fault") == std::string::npos)
        problem("a faulty request was answered with " + std::to_string(response.status) + " " + response.body);
    } else if (response.status == 200) {
      ++answered;
      check_values(index, response);
    } else {
      problem("status " + std::to_string(response.status) + " " + response.body);
    }
  }

  /// Each request has one answer for each version of the model, always with the same bits.
  void check_values(size_t index, const RawResponse& response) {
    const size_t length = std::stoul(response.headers.at("inference-header-content-length"));
    const auto head = nlohmann::json::parse(response.body.substr(0, length));
    const std::string values = response.body.substr(length);
    if (values.size() != static_cast<size_t>(questions_[index].rows * width) * sizeof(float))
      return problem("an answer with " + std::to_string(values.size()) + " bytes");
    const int weights = std::stoi(head.at("model_version").get<std::string>()) % 2;
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = answers_.emplace(std::pair(index, weights), values);
    if (!is_new && known->second != values && problems_.size() < 20)
      problems_.push_back("request " + std::to_string(index) + " received other bits than before");
  }

  void problem(std::string text) {
    const std::lock_guard lock(mutex_);
    if (problems_.size() < 20) problems_.push_back(std::move(text));
  }

  const uint16_t port_;
  std::vector<Question> questions_{};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::string> problems_{};
  std::map<std::pair<size_t, int>, std::string> answers_{};

 public:
  const std::map<std::pair<size_t, int>, std::string>& answers() const { return answers_; }
};

/// Replaces the model by versions with other weights.
void replace_versions(const std::string& folder, uint16_t port, const Load& load, std::atomic<int64_t>& reloads) {
  for (int version = 2; !load.stopped(); ++version) {
    const std::string next = folder + "/net/" + std::to_string(version);
    std::filesystem::create_directories(folder + "/new");
    write_model(folder + "/new/model.pt", version % 2 == 0 ? 10 : 11);
    std::filesystem::rename(folder + "/new", next);
    RawClient control(port);
    control.send(serve::post("/v2/repository/models/net/load", "{}"));
    EXPECT_EQ(control.receive().status, 200);
    ++reloads;
    if (version > 2) std::filesystem::remove_all(folder + "/net/" + std::to_string(version - 2));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

int64_t resident_kb(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  while (status >> word) {
    if (word != "VmRSS:") continue;
    int64_t size = 0;
    status >> size;
    return size;
  }
  return 0;
}

/// The bits that the model alone returns in this process.
void expect_right_values(const Load& load, const std::string& folder) {
  std::map<int, torch::jit::Module> nets;
  for (const int weights : {0, 1}) {
    write_model(folder + "/check.pt", weights == 0 ? 10 : 11);
    nets.emplace(weights, torch::jit::load(folder + "/check.pt"));
  }
  const torch::NoGradGuard no_gradients;
  for (const auto& [key, values] : load.answers()) {
    const auto& [index, weights] = key;
    torch::manual_seed(1000 + index);
    const torch::Tensor x = torch::randn({1 + static_cast<int64_t>(index) % 3, width});
    const torch::Tensor expected = nets.at(weights).forward({x}).toTensor();
    torch::Tensor found = torch::empty_like(expected);
    ASSERT_EQ(found.nbytes(), values.size());
    std::memcpy(found.mutable_data_ptr(), values.data(), values.size());
    EXPECT_LT((found - expected).abs().max().item<float>(), 1e-5) << "request " << index;
  }
}

}  // namespace

TEST(ServeOverload, AnswersAllRequestsWithTheSameBits) {
  const Scratch scratch;
  const std::string folder = scratch.path();
  std::filesystem::create_directories(folder + "/net/1");
  write_model(folder + "/net/1/model.pt", 11);
  std::ofstream(folder + "/net/config.pbtxt") << R"(max_batch_size: 8 dynamic_batching { }
    input { name: "x" data_type: TYPE_FP32 dims: 96 } output { name: "output" data_type: TYPE_FP32 dims: 96 }
    parameters { key: "batch_invariant" value: { string_value: "true" } })";
  Process server(
      {.arguments = {"serve", "--model-repository", folder, "--port", "0", "--max-queue", std::to_string(max_queue)}});
  uint16_t port = 0;
  std::string log;
  ASSERT_TRUE(server.wait_until([&](const Outcome& so_far) {
    log = so_far.err;
    const size_t colon = so_far.out.rfind(':');
    if (colon == std::string::npos || so_far.out.find('\n', colon) == std::string::npos) return false;
    port = static_cast<uint16_t>(std::stoi(so_far.out.substr(colon + 1)));
    return log.find("model \"net\"") != std::string::npos;
  }));
  ASSERT_NE(log.find("version 1: ready"), std::string::npos) << log;

  Load load(port);
  std::atomic<int64_t> reloads{0};
  std::vector<std::thread> threads;
  for (int client = 0; client < client_count; ++client) threads.emplace_back([&, client] { load.ask(client); });
  threads.emplace_back([&] { load.ask_slowly(); });
  threads.emplace_back([&] { replace_versions(folder, port, load, reloads); });
  const bool slow = slow_tests();
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const double seconds = slow ? 600 : 4;
  int64_t early = 0, peak = 0;
  server.wait_until(
      [&](const Outcome&) {
        const int64_t resident = resident_kb(server.pid());
        (elapsed() < seconds / 3 ? early : peak) = std::max(elapsed() < seconds / 3 ? early : peak, resident);
        return elapsed() > seconds;
      },
      seconds);
  load.stop();
  for (std::thread& thread : threads) thread.join();
  if (slow) server.wait_until([](const Outcome&) { return false; }, 8);  // memory returns after 5 idle seconds
  const int64_t after = resident_kb(server.pid());

  for (const std::string& problem : load.problems()) ADD_FAILURE() << problem;
  EXPECT_GT(load.answered, 0);
  EXPECT_GT(load.rejected, 0);
  EXPECT_GT(load.failed, 0);
  EXPECT_GT(reloads, 0);
  if (slow) {  // in a few seconds, memory has not reached its largest size
    EXPECT_LT(peak, early * 1.1) << "memory grows";
    EXPECT_LT(after, early * 1.05) << "memory does not return";
  }
  expect_right_values(load, folder);
  std::printf(
      "%ld answers, %ld rejected, %ld faults, %ld cut, %ld versions; memory %ld kB early, %ld later, %ld after\n",
      load.answered.load(), load.rejected.load(), load.failed.load(), load.cut.load(), reloads.load(), early, peak,
      after);
  server.signal(SIGTERM);
  EXPECT_EQ(server.finish().exit_code, 0);
}

}  // namespace bellows::cli
