// The load generator with a server in this process. No test depends on how fast the machine is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "bellows/serve/load/http_client_impl.h"
#include "bellows/serve/load/load.h"
#include "bellows/serve/server.h"
#include "tests/serve/test_models.h"
#include "tests/support/errors.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
namespace asio = boost::asio;

class LoadedServer : public testing::Test {
 protected:
  LoadedServer() {
    write_test_models(folder_);
    folder_.write("strict/1/model.test", "strict");
    ServerOptions options{.repository = folder_.path()};
    options.http.port = 0;
    server_ = std::make_unique<Server>(options, test_loader());
    server_->wait_until_loaded();
  }

  LoadOptions options(const std::string& model) const {
    LoadOptions options{.url = "127.0.0.1:" + std::to_string(server_->port()), .model = model};
    options.warmup_s = 0;
    options.window_s = 0.05;
    options.max_windows = 3;
    return options;
  }
  std::string file(const std::string& text) const {
    folder_.write("data.json", text);
    return folder_.path() + "/data.json";
  }

  TestFolder folder_{};
  std::unique_ptr<Server> server_{};
};

/// Closes the gate of the models when the measurement starts, and opens it after some time.
class ClosedForAWhile {
 public:
  explicit ClosedForAWhile(std::chrono::milliseconds time) : time_(time) {}
  ~ClosedForAWhile() { gate().open(); }
  void operator()() {
    if (!closed_) {
      gate().close();
      closed_ = Clock::now();
    } else if (Clock::now() - *closed_ >= time_) {
      gate().open();
    }
  }

 private:
  std::chrono::milliseconds time_;
  std::optional<Clock::time_point> closed_{};
};

std::string error_of(const LoadOptions& options) {
  return message_of([&] { measure_load(options); });
}

/// A server that accepts one connection after another, and sends prepared bytes to each.
class FixedServer {
 public:
  explicit FixedServer(std::vector<std::string> answers) : acceptor_(io_, {asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this, answers = std::move(answers)] {
      for (const std::string& answer : answers) {
        boost::system::error_code ignored;
        asio::ip::tcp::socket socket(io_);
        acceptor_.accept(socket, ignored);
        char request[4096];
        socket.read_some(asio::buffer(request), ignored);
        for (const char& byte : answer) asio::write(socket, asio::buffer(&byte, 1), ignored);  // in small pieces
      }
    });
  }
  ~FixedServer() { thread_.join(); }
  FixedServer(const FixedServer&) = delete;
  FixedServer& operator=(const FixedServer&) = delete;
  asio::ip::tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }

 private:
  asio::io_context io_{};
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_{};
};

HttpAnswer ask(const FixedServer& server) {
  asio::io_context io;
  HttpAnswer result;
  const auto connection = std::make_shared<HttpClientConnection>(io, server.endpoint(), true);
  connection->send("GET / HTTP/1.1\r\nHost: x\r\n\r\n", [&](HttpAnswer answer) { result = std::move(answer); });
  io.run();
  return result;
}

}  // namespace

TEST_F(LoadedServer, MeasuresAClosedLoop) {
  LoadOptions wanted = options("sum");
  wanted.levels = {{.concurrency = 1}, {.concurrency = 4}};
  wanted.batch_size = 2;
  std::vector<std::string> steps;
  wanted.progress = [&](const std::string& step, const std::string&) {
    if (steps.empty() || steps.back() != step) steps.push_back(step);
  };
  const LoadReport report = measure_load(wanted);
  EXPECT_THAT(report.server, testing::StartsWith("bellows "));
  EXPECT_EQ(report.version, "1");
  EXPECT_EQ(report.inputs, "a INT64 [2, 2], b INT64 [2, 2]");
  EXPECT_EQ(report.rows, 2);
  EXPECT_THAT(steps, testing::ElementsAre("concurrency 1 (1 of 2)", "concurrency 4 (2 of 2)"));
  ASSERT_EQ(report.levels.size(), 2);
  for (const LevelResult& level : report.levels) {
    EXPECT_GE(level.requests, 10);
    EXPECT_EQ(level.failed, 0);
    EXPECT_TRUE(level.errors.empty());
    EXPECT_EQ(level.latency.count, level.requests);
    EXPECT_DOUBLE_EQ(level.samples_per_s, 2 * level.requests_per_s);
    EXPECT_LE(level.latency.p50_s, level.latency.p99_s);
    EXPECT_LE(level.latency.p99_s, level.latency.max_s);
    ASSERT_TRUE(level.server);
    EXPECT_GT(level.server->requests, 0);
    EXPECT_GE(level.server->batch_size, 2);
    EXPECT_GT(level.client_s, 0);
  }
}

TEST_F(LoadedServer, SendsJsonAndGivenValues) {
  for (const bool as_json : {false, true}) {
    LoadOptions wanted = options("sum");
    wanted.json = as_json;
    wanted.data_file = file(R"({"data":[{"a":[40,1],"b":[2,2]}]})");
    const LoadReport report = measure_load(wanted);
    EXPECT_EQ(report.levels[0].failed, 0);
    if (as_json)
      EXPECT_EQ(json::parse(report.first_answer)["outputs"][0]["data"], json({42, 3}));
    else
      EXPECT_THAT(report.first_answer, testing::EndsWith(std::string("\x2a\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16)));
  }
}

TEST_F(LoadedServer, OpenLoopsAnswerTheWholeSchedule) {
  for (const bool poisson : {false, true}) {
    LoadOptions wanted = options("identity");
    wanted.levels = {{.rate = 400}};
    wanted.poisson = poisson;
    const LevelResult level = measure_load(wanted).levels.at(0);
    EXPECT_EQ(level.failed, 0);
    // The schedule does not depend on the server.
    if (!poisson) {
      EXPECT_NEAR(static_cast<double>(level.latency.count), 400 * level.seconds, 1.5);
    }
    EXPECT_GT(level.latency.count, 0);
  }
}

TEST_F(LoadedServer, LatenciesOfAnOpenLoopIncludeTheTimeBeforeTheConnectionIsFree) {
  ClosedForAWhile closed(std::chrono::milliseconds(500));
  LoadOptions wanted = options("gated");
  wanted.levels = {{.rate = 100}};
  wanted.connections = 1;  // all requests but one wait in the client while the server does not answer
  wanted.window_s = 0.6;
  wanted.max_windows = 1;
  wanted.progress = [&](const std::string&, const std::string&) { closed(); };
  const LevelResult level = measure_load(wanted).levels.at(0);
  EXPECT_EQ(level.failed, 0);
  EXPECT_GT(level.latency.max_s, 0.4);
  EXPECT_GT(level.latency.p90_s, 0.2);  // the latencies of a closed loop would have one such value
}

TEST_F(LoadedServer, CountsErrorsByStatus) {
  ClosedForAWhile closed(std::chrono::milliseconds(300));
  LoadOptions wanted = options("gated");
  wanted.levels = {{.concurrency = 12}};
  wanted.max_windows = 1;
  wanted.progress = [&](const std::string&, const std::string&) { closed(); };
  const LevelResult level = measure_load(wanted).levels.at(0);
  EXPECT_GT(level.errors.at("503"), 0);
  EXPECT_THAT(level.first_error, testing::StartsWith("503: "));
}

TEST_F(LoadedServer, GivesUpRequestsAfterTheTimeout) {
  ClosedForAWhile closed(std::chrono::milliseconds(700));
  LoadOptions wanted = options("gated");
  wanted.levels = {{.rate = 50}};
  wanted.connections = 2;
  wanted.timeout_s = 0.2;
  wanted.max_windows = 1;
  wanted.progress = [&](const std::string&, const std::string&) { closed(); };
  const LevelResult level = measure_load(wanted).levels.at(0);
  EXPECT_GT(level.errors.count("timeout") + level.errors.count("not sent"), 0);
  EXPECT_GE(level.latency.max_s, 0.2);
}

TEST_F(LoadedServer, StopsOnRequest) {
  LoadOptions wanted = options("identity");
  wanted.levels = {{.concurrency = 1}, {.concurrency = 2}};
  wanted.window_s = 1000;
  int calls = 0;
  wanted.stop = [&] { return ++calls > 3; };
  const LoadReport report = measure_load(wanted);
  ASSERT_EQ(report.levels.size(), 1);
  EXPECT_FALSE(report.levels[0].stable);
}

TEST_F(LoadedServer, NamesTheProblem) {
  LoadOptions wanted = options("identity");
  wanted.model = "absent";
  EXPECT_THAT(error_of(wanted),
              testing::AllOf(HasSubstr("has no model \"absent\""), HasSubstr("Models that are ready: ")));
  EXPECT_THAT(error_of(wanted), HasSubstr("sum"));
  wanted = options("identity");
  wanted.version = "7";
  EXPECT_THAT(error_of(wanted), HasSubstr("with version 7"));
  wanted = options("strict");
  wanted.data_file = file(R"({"data":[{"x":[-1,2,3,4]}]})");
  EXPECT_THAT(error_of(wanted),
              testing::AllOf(HasSubstr("does not accept the request: 500"), HasSubstr("negative value")));
  wanted = options("identity");
  server_.reset();
  EXPECT_THAT(error_of(wanted), HasSubstr("no server answers at 127.0.0.1:"));
  for (const char* url : {"https://127.0.0.1:8000", "127.0.0.1:x", ":1", "127.0.0.1:123456"}) {
    wanted.url = url;
    EXPECT_THAT(error_of(wanted), HasSubstr("`url`")) << url;
  }
  wanted.url = "no-such-host.invalid:1";
  EXPECT_THAT(error_of(wanted), HasSubstr("is unknown"));
  wanted = LoadOptions{.model = "x", .levels = {{.concurrency = 1, .rate = 2}}};
  EXPECT_THAT(error_of(wanted), HasSubstr("got concurrency 1 and rate 2"));
}

TEST(HttpClient, ReadsAllKindsOfResponses) {
  const FixedServer server({"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
                            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\nbusy",
                            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", "nonsense\r\n\r\n", ""});
  const HttpAnswer chunked = ask(server);
  EXPECT_EQ(chunked.status, 200);
  EXPECT_EQ(chunked.body, "abcde");
  const HttpAnswer until_end = ask(server);
  EXPECT_EQ(until_end.status, 503);
  EXPECT_EQ(until_end.body, "busy");
  const HttpAnswer truncated = ask(server);
  EXPECT_EQ(truncated.status, 0);
  EXPECT_EQ(truncated.problem, "connection closed");
  EXPECT_THAT(ask(server).problem, HasSubstr("malformed response"));
  EXPECT_EQ(ask(server).problem, "connection closed");
}

}  // namespace bellows::serve
