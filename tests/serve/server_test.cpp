#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bellows/core/log.h"
#include "bellows/serve/server.h"
#include "tests/serve/raw_client.h"
#include "tests/serve/test_models.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;

/// A server with the models of test_models.h.
class RunningServer {
 public:
  explicit RunningServer(const std::function<void(ServerOptions&)>& change = {}) {
    write_test_models(folder_);
    folder_.write("half/1/model.test", "types FP16");
    folder_.write("damaged/1/model.test", "?");
    ServerOptions options{.repository = folder_.path()};
    options.http.port = 0;
    if (change) change(options);
    server_ = std::make_unique<Server>(options, test_loader());
    server_->wait_until_loaded();
  }

  uint16_t port() const { return server_->port(); }
  Server& server() { return *server_; }
  const TestFolder& folder() const { return folder_; }
  RawResponse ask(const std::string& request) {
    RawClient client(port());
    client.send(request);
    return client.receive();
  }
  json stats(const std::string& model) {
    return json::parse(ask(get("/v2/models/" + model + "/stats")).body)["model_stats"][0];
  }

 private:
  TestFolder folder_;
  std::unique_ptr<Server> server_;
};

std::string identity_body(float value) {
  const std::string text = json(value).dump();
  return R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[)" + text + "," + text + "," + text + "," +
         text + "]}]}";
}

std::string sum_body(int64_t a, int64_t b) {
  return R"({"inputs":[{"name":"a","datatype":"INT64","shape":[1,2],"data":[)" + std::to_string(a) + ",1]}," +
         R"({"name":"b","datatype":"INT64","shape":[1,2],"data":[)" + std::to_string(b) + ",2]}]}";
}

const std::string infer_identity = post("/v2/models/identity/infer", identity_body(1.5F));

}  // namespace

TEST(Server, AnswersHealthAndMetadata) {
  RunningServer running;
  EXPECT_EQ(running.ask(get("/v2/health/live")).status, 200);
  EXPECT_EQ(running.ask(get("/v2/health/ready")).status, 200);
  EXPECT_EQ(running.ask(get("/v2/models/sum/ready")).status, 200);
  EXPECT_EQ(running.ask(get("/v2/models/sum/versions/1/ready")).status, 200);
  EXPECT_EQ(running.ask(get("/v2/models/sum/versions/2/ready")).status, 400);
  EXPECT_EQ(running.ask(get("/v2/models/damaged/ready")).status, 400);
  const json server = json::parse(running.ask(get("/v2")).body);
  EXPECT_EQ(server["name"], "bellows");
  EXPECT_THAT(server["extensions"], testing::Contains("binary_tensor_data"));
  const json model = json::parse(running.ask(get("/v2/models/sum")).body);
  EXPECT_EQ(model["versions"], json({"1"}));
  EXPECT_EQ(model["inputs"][0], json({{"name", "a"}, {"datatype", "INT64"}, {"shape", {-1, 2}}}));
  EXPECT_EQ(json::parse(running.ask(get("/v2/models/sum/config")).body)["max_batch_size"], 8);
  EXPECT_EQ(json::parse(running.ask(get("/v2/models/identity/config")).body)["backend"], "test");
}

TEST(Server, AnswersInference) {
  RunningServer running;
  const RawResponse response = running.ask(infer_identity);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const json body = json::parse(response.body);
  EXPECT_EQ(body["model_name"], "identity");
  EXPECT_EQ(body["model_version"], "1");
  EXPECT_EQ(body["outputs"][0]["data"], json({1.5, 1.5, 1.5, 1.5}));
  const json sum = json::parse(running.ask(post("/v2/models/sum/versions/1/infer", sum_body(40, 2))).body);
  EXPECT_EQ(sum["outputs"][0]["data"], json({42, 3}));
}

TEST(Server, AnswersBinaryTensors) {
  RunningServer running;
  std::string body = R"({"inputs":[{"name":"x","datatype":"FP16","shape":[1,2],"parameters":{"binary_data_size":4}}],)"
                     R"("outputs":[{"name":"y","parameters":{"binary_data":true}}]})";
  const size_t header = body.size();
  body += std::string("\x00\x3c\x01\x02", 4);
  const RawResponse response = running.ask(
      post("/v2/models/half/infer", body, "Inference-Header-Content-Length: " + std::to_string(header) + "\r\n"));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/octet-stream");
  const size_t length = std::stoull(response.headers.at("inference-header-content-length"));
  EXPECT_EQ(json::parse(response.body.substr(0, length))["outputs"][0]["parameters"]["binary_data_size"], 4);
  EXPECT_EQ(response.body.substr(length), body.substr(header));
}

TEST(Server, ReportsErrorsWithTheProtocolsObject) {
  RunningServer running;
  const auto expect = [&](const std::string& request, int status, const std::string& part) {
    const RawResponse response = running.ask(request);
    EXPECT_EQ(response.status, status) << request;
    ASSERT_TRUE(json::parse(response.body).contains("error")) << response.body;
    EXPECT_THAT(json::parse(response.body)["error"].get<std::string>(), HasSubstr(part));
  };
  expect(post("/v2/models/identity/infer", "{"), 400, "not valid JSON");
  expect(post("/v2/models/identity/infer", R"({"inputs":[]})"), 400, "missing input");
  expect(post("/v2/models/none/infer", "{}"), 404, "unknown model");
  expect(post("/v2/models/damaged/infer", "{}"), 400, "damaged model file");
  expect(post("/v2/models/identity/versions/9/infer", "{}"), 404, "no version");
  expect(post("/v2/models/identity/infer", "{}", "Inference-Header-Content-Length: -1\r\n"), 400, "Inference-Header");
  expect(post("/v2/models/identity/infer", "{}", "Content-Encoding: gzip\r\n"), 415, "gzip");
  expect(get("/none"), 404, "no such URL");
  expect(get("/v2/models/identity/versions"), 404, "no such URL");
  expect(get("/v2/models/identity/infer"), 404, "no such URL");
  expect(get("/v2/models/%zz"), 400, "escape");
  expect("DELETE /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 405, "DELETE");
  EXPECT_EQ(running.ask(infer_identity).status, 200);
}

TEST(Server, ControlsModels) {
  RunningServer running;
  const auto states = [&](const std::string& body) {
    std::map<std::string, std::string> map;
    for (const json& row : json::parse(running.ask(post("/v2/repository/index", body)).body))
      map[row["name"]] = row["state"];
    return map;
  };
  EXPECT_EQ(states("").at("damaged"), "UNAVAILABLE");
  EXPECT_FALSE(states(R"({"ready":true})").contains("damaged"));
  EXPECT_EQ(running.ask(post("/v2/repository/models/identity/unload", "")).status, 200);
  EXPECT_EQ(running.ask(infer_identity).status, 400);
  EXPECT_EQ(running.ask(post("/v2/repository/models/identity/load", "{}")).status, 200);
  EXPECT_EQ(running.ask(infer_identity).status, 200);
  running.folder().write("damaged/1/model.test", "identity");
  EXPECT_EQ(running.ask(post("/v2/repository/models/damaged/load", "")).status, 200);
  EXPECT_EQ(states("").at("damaged"), "READY");
  EXPECT_EQ(running.ask(post("/v2/repository/models/none/load", "")).status, 404);
  EXPECT_EQ(running.ask(post("/v2/repository/models/none/unload", "")).status, 404);
  EXPECT_EQ(running.ask(post("/v2/repository/models/..%2f../load", "")).status, 404);
  EXPECT_EQ(running.ask(post("/v2/repository/models/identity/load", R"({"parameters":{"config":"{}"}})")).status, 501);
  EXPECT_EQ(running.ask(post("/v2/repository/index", "[")).status, 400);
}

TEST(Server, CanForbidModelControl) {
  RunningServer running([](ServerOptions& options) { options.model_control = false; });
  EXPECT_EQ(running.ask(post("/v2/repository/models/identity/unload", "")).status, 400);
  EXPECT_EQ(running.ask(infer_identity).status, 200);
}

TEST(Server, CountsRequests) {
  RunningServer running;
  for (int i = 0; i < 3; ++i) running.ask(infer_identity);
  running.ask(post("/v2/models/identity/infer", "{"));
  const json stats = running.stats("identity");
  EXPECT_EQ(stats["inference_count"], 3);
  EXPECT_EQ(stats["inference_stats"]["success"]["count"], 3);
  EXPECT_EQ(stats["inference_stats"]["fail"]["count"], 1);
  EXPECT_GT(stats["inference_stats"]["success"]["ns"], 0);
  const std::string metrics = running.ask(get("/metrics")).body;
  EXPECT_THAT(metrics, HasSubstr("nv_inference_request_success{model=\"identity\",version=\"1\"} 3\n"));
  EXPECT_THAT(metrics,
              HasSubstr("nv_inference_request_failure{model=\"identity\",version=\"1\",reason=\"OTHER\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("# TYPE nv_inference_queue_duration_us counter\n"));
}

TEST(Server, KeepsConnectionsAlive) {
  RunningServer running;
  RawClient client(running.port());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.send(infer_identity));
    EXPECT_EQ(client.receive().status, 200);
  }
  client.send(get("/v2", "Connection: close\r\n"));
  EXPECT_EQ(client.receive().headers.at("connection"), "close");
  EXPECT_TRUE(client.closed_by_server());
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  RunningServer running;
  RawClient client(running.port());
  std::string all;
  for (int i = 0; i < 20; ++i) all += post("/v2/models/sum/infer", sum_body(i, 0));
  client.send(all);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(json::parse(client.receive().body)["outputs"][0]["data"][0], i);
}

TEST(Server, SendsContinue) {
  RunningServer running;
  RawClient client(running.port());
  const std::string request = post("/v2/models/identity/infer", identity_body(2), "Expect: 100-continue\r\n");
  const size_t body = request.find("\r\n\r\n") + 4;
  client.send(request.substr(0, body));
  EXPECT_EQ(client.receive().status, 100);
  client.send(request.substr(body));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Server, ReadsChunkedBodies) {
  RunningServer running;
  RawClient client(running.port());
  const std::string body = identity_body(3);
  client.send("POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n");
  std::array<char, 16> size;
  std::snprintf(size.data(), size.size(), "%zx\r\n", body.size() - 1);
  client.send(size.data() + body.substr(1) + "\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Server, LimitsBodiesAndHeaders) {
  RunningServer running([](ServerOptions& options) {
    options.http.max_body_bytes = 1000;
    options.http.max_header_bytes = 2000;
  });
  EXPECT_EQ(running.ask(post("/v2/models/identity/infer", std::string(1001, ' '))).status, 413);
  EXPECT_EQ(running.ask("POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n").status, 413);
  EXPECT_EQ(running.ask(get("/v2", "X: " + std::string(3000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(running
                .ask("POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" +
                     std::string(0xfff, ' ') + "\r\n")
                .status,
            413);
  EXPECT_EQ(running.ask(infer_identity).status, 200);
}

TEST(Server, LimitsConnections) {
  RunningServer running([](ServerOptions& options) { options.http.max_connections = 2; });
  {
    RawClient one(running.port()), two(running.port());
    for (RawClient* client : {&one, &two}) {
      client->send(infer_identity);
      EXPECT_EQ(client->receive().status, 200);
    }
    RawClient three(running.port());
    const RawResponse refused = three.receive();
    EXPECT_EQ(refused.status, 503);
    EXPECT_TRUE(json::parse(refused.body).contains("error"));
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
  }
  // The places are free again when the server has seen the end of the connections.
  while (running.ask(infer_identity).status != 200) std::this_thread::yield();
}

TEST(Server, DisconnectsSlowClients) {
  RunningServer running([](ServerOptions& options) {
    options.http.header_timeout = milliseconds(100);
    options.http.body_timeout = milliseconds(100);
    options.http.idle_timeout = milliseconds(100);
  });
  RawClient idle(running.port()), header(running.port()), body(running.port()), kept(running.port());
  header.send("POST /v2/models/identity/infer HT");
  body.send(infer_identity.substr(0, infer_identity.size() - 1));
  kept.send(infer_identity);
  EXPECT_EQ(kept.receive().status, 200);
  for (RawClient* client : {&idle, &header, &body, &kept}) EXPECT_TRUE(client->closed_by_server());
  EXPECT_EQ(running.ask(infer_identity).status, 200);
}

TEST(Server, AnswersRequestsThatArriveInPieces) {
  RunningServer running;
  RawClient client(running.port());
  for (const char byte : infer_identity) ASSERT_TRUE(client.send({&byte, 1}));
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Server, AnswersClientsThatCloseTheirSendingSide) {
  RunningServer running;
  const ClosedGate closed;
  RawClient client(running.port());
  client.send(post("/v2/models/gated/infer", identity_body(1)));
  client.half_close();
  gate().wait_for_arrivals(1);
  std::this_thread::sleep_for(milliseconds(120));  // the server starts to watch its clients after 50 ms
  gate().open();
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Server, CancelsRequestsOfClientsThatDisconnect) {
  RunningServer running;
  const ClosedGate closed;
  RawClient first(running.port());
  first.send(post("/v2/models/gated/infer", identity_body(1)));
  gate().wait_for_arrivals(1);
  {
    RawClient second(running.port()), third(running.port());
    second.send(post("/v2/models/gated/infer", identity_body(1)));
    third.send(post("/v2/models/gated/infer", identity_body(1)));
    std::this_thread::sleep_for(milliseconds(200));
    third.reset();
  }
  // The gate is still closed, so the requests are cancelled in the queue.
  while (running.stats("gated")["inference_stats"]["fail"]["count"] != 2) std::this_thread::yield();
  gate().open();
  EXPECT_EQ(first.receive().status, 200);
  EXPECT_EQ(running.stats("gated")["execution_count"], 1);
  EXPECT_THAT(running.ask(get("/metrics")).body, HasSubstr("reason=\"CANCELED\"} 2\n"));
}

TEST(Server, RejectsRequestsIfTheQueueIsFull) {
  RunningServer running;
  const ClosedGate closed;
  std::vector<std::unique_ptr<RawClient>> clients;
  const auto send = [&] {
    clients.push_back(std::make_unique<RawClient>(running.port()));
    clients.back()->send(post("/v2/models/gated/infer", identity_body(1)));
  };
  send();
  gate().wait_for_arrivals(1);
  send();
  send();
  const auto pending = [&] {
    return running.ask(get("/metrics"))
               .body.find("nv_inference_pending_request_count{model=\"gated\",version=\"1\"} 2") != std::string::npos;
  };
  while (!pending()) std::this_thread::yield();
  const RawResponse rejected = running.ask(post("/v2/models/gated/infer", identity_body(1)));
  EXPECT_EQ(rejected.status, 503);
  EXPECT_EQ(rejected.headers.at("retry-after"), "1");
  gate().open();
  for (const auto& client : clients) EXPECT_EQ(client->receive().status, 200);
}

TEST(Server, SurvivesGarbage) {
  RunningServer running(
      [](ServerOptions& options) { options.http.header_timeout = options.http.body_timeout = milliseconds(200); });
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    RawClient client(running.port());
    std::string bytes = round % 2 == 0 ? infer_identity : "";
    if (bytes.empty()) {
      for (int i = 0; i < 1 + static_cast<int>(random() % 600); ++i) bytes += static_cast<char>(random());
    } else {
      for (int i = 0; i < 1 + static_cast<int>(random() % 4); ++i)
        bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    client.send(bytes);
    if (round % 3 == 0) client.half_close();
    if (round % 3 == 1) client.reset();
  }
  EXPECT_EQ(running.ask(infer_identity).status, 200);
}

TEST(Server, AnswersConcurrentClients) {
  RunningServer running;
  constexpr int clients = 8, requests = 50;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      RawClient client(running.port());
      for (int i = 0; i < requests; ++i) {
        client.send(post("/v2/models/sum/infer", sum_body(c * 1000, i)));
        const RawResponse response = client.receive();
        if (response.status != 200 || json::parse(response.body)["outputs"][0]["data"] != json({c * 1000 + i, 3}))
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const json stats = running.stats("sum");
  EXPECT_EQ(stats["inference_count"], clients * requests);
  EXPECT_LT(stats["execution_count"], clients * requests) << "no requests were combined";
}

TEST(Server, DrainAnswersReceivedRequests) {
  RunningServer running;
  const ClosedGate closed;
  RawClient idle(running.port()), busy(running.port());
  idle.send(get("/v2/health/ready"));
  EXPECT_EQ(idle.receive().status, 200);
  busy.send(post("/v2/models/gated/infer", identity_body(1)));
  gate().wait_for_arrivals(1);
  auto drained = std::async(std::launch::async, [&] { return running.server().drain(std::chrono::seconds(20)); });
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_THROW(RawClient(running.port()), std::runtime_error);
  gate().open();
  const RawResponse response = busy.receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(busy.closed_by_server());
  EXPECT_TRUE(drained.get());
}

TEST(Server, DrainCutsConnectionsAfterTheTimeout) {
  RunningServer running;
  const ClosedGate closed;
  RawClient busy(running.port());
  busy.send(post("/v2/models/gated/infer", identity_body(1)));
  gate().wait_for_arrivals(1);
  auto drained = std::async(std::launch::async, [&] { return running.server().drain(milliseconds(50)); });
  EXPECT_TRUE(busy.closed_by_server());
  gate().open();
  EXPECT_FALSE(drained.get());
}

TEST(Server, FindsNewVersionsByPolling) {
  RunningServer running([](ServerOptions& options) { options.poll_interval = milliseconds(100); });
  running.folder().write("identity/2/model.test", "scale 10");
  const auto version = [&] { return json::parse(running.ask(infer_identity).body)["model_version"]; };
  while (version() != "2") std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(json::parse(running.ask(infer_identity).body)["outputs"][0]["data"][0], 15);
}

TEST(Server, RejectsWrongAddresses) {
  RunningServer running;
  const auto start = [&](const std::string& address, uint16_t port) {
    ServerOptions options{.repository = running.folder().path()};
    options.http.address = address;
    options.http.port = port;
    Server server(options, test_loader());
  };
  EXPECT_THROW(start("example", 0), c10::ValueError);
  EXPECT_THROW(start("127.0.0.1", running.port()), c10::ValueError);
}

}  // namespace bellows::serve
