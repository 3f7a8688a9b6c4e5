// `bellows serve`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "forked.h"
#include "process.h"
#include "tests/serve/raw_client.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class ServedDigits : public TrainedMlp<ServedDigits> {
 protected:
  /// A repository with a compiled program of the model.
  static std::string repository() {
    const std::string folder = path("models");
    if (!std::filesystem::exists(folder)) {
      std::filesystem::create_directories(folder + "/digits/1");
      const Outcome made =
          run_bellows({"export", run(), "--format", "bellows", "--output", folder + "/digits/1/model.program"});
      EXPECT_EQ(made.exit_code, 0) << made.err;
    }
    return folder;
  }
};

uint16_t port_of(const Outcome& so_far) {
  const size_t colon = so_far.out.rfind(':');
  return colon == std::string::npos ? 0 : static_cast<uint16_t>(std::stoi(so_far.out.substr(colon + 1)));
}

}  // namespace

TEST_F(ServedDigits, AnswersUntilASignal) {
  Process process(
      {.arguments = {"serve", "--model-repository", repository(), "--port", "0", "--no-grpc", "--access-log"}});
  uint16_t port = 0;
  ASSERT_TRUE(process.wait_until([&](const Outcome& so_far) {
    port = port_of(so_far);
    return port != 0 && so_far.err.find("ready") != std::string::npos;
  }));
  serve::RawClient client(port);
  client.send(serve::get("/v2/models/digits"));
  const Json metadata = Json::parse(client.receive().body);
  EXPECT_EQ(metadata["platform"], "program");
  Json request = {{"inputs", Json::array()}};
  Json shape = metadata["inputs"][0]["shape"];
  int64_t count = 1;
  for (Json& size : shape) {
    size = size == -1 ? 2 : size.get<int>();
    count *= size.get<int64_t>();
  }
  request["inputs"].push_back({{"name", metadata["inputs"][0]["name"]},
                               {"datatype", metadata["inputs"][0]["datatype"]},
                               {"shape", shape},
                               {"data", std::vector<int>(static_cast<size_t>(count), 1)}});
  client.send(serve::post("/v2/models/digits/infer", request.dump()));
  const serve::RawResponse response = client.receive();
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(Json::parse(response.body)["outputs"][0]["shape"], Json({2, 10}));
  process.signal(SIGTERM);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Listening on http://127.0.0.1:"));
  EXPECT_THAT(outcome.err, HasSubstr("POST /v2/models/digits/infer 200"));
}

TEST_F(ServedDigits, ExpectsTokensAndWritesLogs) {
  const std::string tokens = path("tokens"), trace = path("trace");
  std::ofstream(tokens) << "team:first-token-0123456789\n";
  Process process(
      {.arguments = {"serve", "--model-repository", repository(), "--port", "0", "--no-grpc", "--access-log",
                     "--token-file", tokens, "--open-health", "--trace-file", trace, "--trace-rate", "0"}});
  uint16_t port = 0;
  ASSERT_TRUE(process.wait_until([&](const Outcome& so_far) {
    port = port_of(so_far);
    return port != 0 && so_far.err.find("ready") != std::string::npos;
  }));
  const auto status = [&](const std::string& request) {
    serve::RawClient client(port);
    client.send(request);
    return client.receive().status;
  };
  // The log names each model that is ready; the server is ready a moment later.
  while (status(serve::get("/v2/health/ready")) != 200) std::this_thread::yield();
  EXPECT_EQ(status(serve::get("/metrics")), 401);
  const std::string first = "Authorization: Bearer first-token-0123456789\r\n",
                    second = "Authorization: Bearer second-token-0123456789\r\n";
  EXPECT_EQ(status(serve::post("/v2/models/digits/infer", "{}", first)), 400);
  EXPECT_EQ(status(serve::get("/metrics", second)), 401);
  std::ofstream(tokens) << "second-token-0123456789\n";
  process.signal(SIGHUP);
  while (status(serve::get("/metrics", second)) != 200) std::this_thread::yield();
  process.signal(SIGTERM);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("127.0.0.1 team POST /v2/models/digits/infer 400 "));
  EXPECT_THAT(outcome.err + outcome.out, ::testing::Not(HasSubstr("-token-0123456789")));
  std::ifstream lines(trace);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(Json::parse(line)["client"], "team");
}

TEST_F(ServedDigits, RefusesOtherMachinesWithoutTokens) {
  const Outcome open =
      run_bellows({"serve", "--model-repository", repository(), "--port", "0", "--address", "0.0.0.0"});
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_THAT(open.err, HasSubstr("--token-file"));
  EXPECT_THAT(open.err, HasSubstr("--no-authentication"));
  const Outcome tokens =
      run_bellows({"serve", "--model-repository", repository(), "--port", "0", "--token-file", path("none")});
  EXPECT_EQ(tokens.exit_code, 1);
  EXPECT_THAT(tokens.err, HasSubstr("none"));
  const Outcome key =
      run_bellows({"serve", "--model-repository", repository(), "--port", "0", "--tls-key", path("none")});
  EXPECT_EQ(key.exit_code, 1);
  EXPECT_THAT(key.err, HasSubstr("--tls-certificate is missing"));
  const Outcome trace =
      run_bellows({"serve", "--model-repository", repository(), "--port", "0", "--trace-file", path("none/trace")});
  EXPECT_EQ(trace.exit_code, 1);
  EXPECT_THAT(trace.err, HasSubstr("cannot write traces"));
  EXPECT_EQ(run_forked({"serve", "--model-repository", repository(), "--trace-rate", "-1"}).exit_code, 2);
}

TEST_F(ServedDigits, RejectsWrongArguments) {
  const Outcome absent = run_bellows({"serve", "--model-repository", path("none")});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("there is no such folder"));
  const Outcome address = run_bellows({"serve", "--model-repository", repository(), "--address", "example"});
  EXPECT_EQ(address.exit_code, 1);
  EXPECT_THAT(address.err, HasSubstr("--address must be an IP address"));
  EXPECT_EQ(run_forked({"serve"}).exit_code, 2);
  EXPECT_EQ(run_forked({"serve", "--model-repository", repository(), "--port", "70000"}).exit_code, 2);
}

}  // namespace bellows::cli
