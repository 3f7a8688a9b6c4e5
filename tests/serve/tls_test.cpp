#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "tests/serve/started_server.h"
#include "tests/serve/tls_client.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;

void write_certificate(const TestFolder& folder, const std::string& name) {
  const TestCertificate made = make_certificate(name);
  folder.write("key.pem", made.key);
  folder.write("certificate.pem", made.certificate);
}

void use_tls(ServerOptions& options, const TestFolder& folder) {
  write_certificate(folder, "first");
  options.http.tls_certificate = folder.path() + "/certificate.pem";
  options.http.tls_key = folder.path() + "/key.pem";
}

void use_short_timeouts(ServerOptions& options, const TestFolder& folder) {
  use_tls(options, folder);
  options.http.header_timeout = options.http.body_timeout = options.http.idle_timeout = milliseconds(200);
}

std::string start_error(const std::function<void(ServerOptions&, const TestFolder&)>& change) {
  try {
    const StartedServer server(change);
    return "started";
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
}

int status_of(uint16_t port) {
  TlsClient client(port);
  client.send(infer("identity"));
  return client.receive().status;
}

}  // namespace

TEST(Tls, AnswersOnOneConnection) {
  StartedServer server(use_tls);
  TlsClient client(server.port());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.version(), "TLSv1.3");
  EXPECT_EQ(client.certificate_name(), "first");
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.send(infer("identity")));
    EXPECT_EQ(json::parse(client.receive().body)["outputs"][0]["data"], json({1, 2, 3, 4}));
  }
  client.send(get("/v2", "Connection: close\r\n"));
  EXPECT_EQ(client.receive().headers.at("connection"), "close");
  EXPECT_TRUE(client.ended_by_server()) << "the stream was cut";
}

TEST(Tls, AnswersPipelinedAndLargeRequests) {
  StartedServer server([](ServerOptions& options, const TestFolder& folder) {
    folder.write("models/any/1/model.test", "types INT64");
    use_tls(options, folder);
  });
  TlsClient client(server.port());
  client.send(infer("identity") + infer("identity") + infer("none"));
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(client.receive().status, 404);
  const std::vector<int64_t> values(200'000, 123456);
  const json body = {
      {"inputs", {{{"name", "x"}, {"datatype", "INT64"}, {"shape", {1, values.size()}}, {"data", values}}}}};
  client.send(post("/v2/models/any/infer", body.dump()));
  const RawResponse response = client.receive();
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(response.body)["outputs"][0]["data"].get<std::vector<int64_t>>(), values);
}

TEST(Tls, AcceptsOnlySafeVersions) {
  StartedServer server(use_tls);
  TlsClient old(server.port(), TLS1_1_VERSION);
  EXPECT_FALSE(old.connected());
  TlsClient current(server.port(), TLS1_2_VERSION);
  EXPECT_TRUE(current.connected());
  EXPECT_EQ(current.version(), "TLSv1.2");
  current.send(infer("identity"));
  EXPECT_EQ(current.receive().status, 200);
}

TEST(Tls, ReadsNewCertificatesWithoutRestart) {
  StartedServer server(use_tls);
  TlsClient before(server.port());
  const auto name = [&] { return TlsClient(server.port()).certificate_name(); };
  write_certificate(server.folder(), "second");
  server.server().reload_files();
  while (name() != "second") std::this_thread::yield();
  before.send(infer("identity"));
  EXPECT_EQ(before.receive().status, 200) << "open connections keep their certificate";
  // Files that cannot be used change nothing, and the server reads them again when they are correct. Without a signal,
  // it looks for changes every second.
  server.folder().write("certificate.pem", "damaged");
  server.server().reload_files();
  EXPECT_EQ(name(), "second");
  write_certificate(server.folder(), "third");
  while (name() != "third") std::this_thread::sleep_for(milliseconds(10));
}

TEST(Tls, RejectsWrongFiles) {
  const auto with = [](const std::string& certificate, const std::string& key) {
    return start_error([&](ServerOptions& options, const TestFolder& folder) {
      use_tls(options, folder);
      const TestCertificate other = make_certificate("other");
      if (certificate == "damaged") folder.write("certificate.pem", "-----BEGIN CERTIFICATE-----\nMII\n");
      if (certificate == "missing") options.http.tls_certificate += ".none";
      if (certificate == "none") options.http.tls_certificate.clear();
      if (key == "damaged") folder.write("key.pem", "");
      if (key == "other") folder.write("key.pem", other.key);
      if (key == "none") options.http.tls_key.clear();
    });
  };
  EXPECT_EQ(with("", ""), "started");
  EXPECT_THAT(with("damaged", ""), HasSubstr("certificate.pem: "));
  EXPECT_THAT(with("damaged", ""), HasSubstr("Expected a PEM file with the certificate"));
  EXPECT_THAT(with("missing", ""), HasSubstr("certificate.pem.none"));
  EXPECT_THAT(with("none", ""), HasSubstr("`tls_certificate` is missing"));
  EXPECT_THAT(with("", "damaged"), HasSubstr("Expected a PEM file with the private key that belongs to"));
  EXPECT_THAT(with("", "other"), HasSubstr("private key that belongs to"));
  EXPECT_THAT(with("", "none"), HasSubstr("`tls_key` is missing"));
}

TEST(Tls, ExplainsPlainRequests) {
  StartedServer server(use_tls);
  const RawResponse response = server.ask(infer("identity"));
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(json::parse(response.body)["error"].get<std::string>(), HasSubstr("expects TLS"));
  EXPECT_EQ(status_of(server.port()), 200);
}

TEST(Tls, EndsSlowAndHalfClosedHandshakes) {
  StartedServer server(use_short_timeouts);
  RawClient silent(server.port()), partial(server.port()), half(server.port());
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);  // the start of a ClientHello
  partial.send(hello);
  half.send(hello);
  half.half_close();
  TlsClient idle(server.port()), header(server.port());
  header.send("POST /v2/models/identity/infer HT");
  for (RawClient* client : {&silent, &partial, &half}) EXPECT_TRUE(client->closed_by_server());
  EXPECT_EQ(idle.receive().status, 0);
  EXPECT_EQ(header.receive().status, 0);
  EXPECT_EQ(status_of(server.port()), 200);
}

TEST(Tls, SurvivesGarbage) {
  StartedServer server(use_short_timeouts);
  std::mt19937 random(4);
  const auto bytes = [&](size_t count) {
    std::string text;
    while (text.size() < count) text += static_cast<char>(random());
    return text;
  };
  for (int round = 0; round < 200; ++round) {
    RawClient client(server.port());
    // Half of them look like records of TLS.
    const std::string body = bytes(1 + random() % 600);
    const char type = static_cast<char>(20 + random() % 5);
    const char size[] = {static_cast<char>(body.size() >> 8), static_cast<char>(body.size())};
    client.send(round % 2 == 0 ? body : std::string{type, 3, 3} + std::string(size, 2) + body);
    if (round % 3 == 0) client.half_close();
    if (round % 3 == 1) client.reset();
  }
  // Encrypted connections that are cut, and encrypted garbage.
  for (int round = 0; round < 30; ++round) {
    TlsClient client(server.port());
    client.send(bytes(1 + random() % 600));
    client.close(/*orderly=*/round % 2 == 0);
  }
  EXPECT_EQ(status_of(server.port()), 200);
}

TEST(Tls, CancelsRequestsOfClientsThatDisconnect) {
  for (const bool orderly : {false, true}) {
    StartedServer server(use_tls);
    const ClosedGate closed;
    TlsClient first(server.port());
    first.send(infer("gated"));
    gate().wait_for_arrivals(1);
    TlsClient second(server.port());
    second.send(infer("gated"));
    const auto failures = [&] {
      TlsClient client(server.port());
      client.send(get("/v2/models/gated/stats"));
      return json::parse(client.receive().body)["model_stats"][0]["inference_stats"]["fail"]["count"].get<int>();
    };
    std::this_thread::sleep_for(milliseconds(100));  // the server starts to watch its clients after 50 ms
    second.close(orderly);
    while (failures() != 1) std::this_thread::yield();
    gate().open();
    EXPECT_EQ(first.receive().status, 200);
    first.send(infer("identity"));
    EXPECT_EQ(first.receive().status, 200) << "the connection is usable after it was watched";
  }
}

TEST(Tls, KeepsRequestsThatArriveWhileItWatches) {
  StartedServer server(use_tls);
  const ClosedGate closed;
  TlsClient client(server.port());
  client.send(infer("gated"));
  gate().wait_for_arrivals(1);
  std::this_thread::sleep_for(milliseconds(100));  // the server starts to watch its clients after 50 ms
  client.send(infer("identity"));
  client.send(infer("none"));
  std::this_thread::sleep_for(milliseconds(20));
  gate().open();
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(client.receive().status, 404);
}

TEST(Tls, RejectsLargeBodiesAndWrongTokensEarly) {
  StartedServer server([](ServerOptions& options, const TestFolder& folder) {
    use_tls(options, folder);
    folder.write("tokens", "0123456789abcdef");
    options.access.token_file = folder.path() + "/tokens";
    options.http.max_body_bytes = 1000;
  });
  const auto status = [&](const std::string& request) {
    TlsClient client(server.port());
    client.send(request);
    return client.receive().status;
  };
  const std::string token = "Authorization: Bearer 0123456789abcdef\r\n";
  EXPECT_EQ(status(infer("identity", token)), 200);
  EXPECT_EQ(status(post("/v2/models/identity/infer", std::string(100'000, ' '), token)), 413);
  EXPECT_EQ(status(post("/v2/models/identity/infer", std::string(900, ' '))), 401);
}

TEST(Tls, DrainAnswersReceivedRequests) {
  StartedServer server(use_tls);
  const ClosedGate closed;
  TlsClient idle(server.port()), busy(server.port());
  RawClient in_handshake(server.port());
  busy.send(infer("gated"));
  gate().wait_for_arrivals(1);
  std::thread drain([&] { EXPECT_TRUE(server.server().drain(std::chrono::seconds(20))); });
  EXPECT_EQ(idle.receive().status, 0);
  EXPECT_TRUE(in_handshake.closed_by_server());
  gate().open();
  EXPECT_EQ(busy.receive().status, 200);
  EXPECT_TRUE(busy.ended_by_server());
  drain.join();
}

TEST(Tls, AnswersConcurrentClients) {
  StartedServer server(use_tls);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < 4; ++c) {
    threads.emplace_back([&] {
      TlsClient client(server.port());
      for (int i = 0; i < 50; ++i) {
        client.send(infer("identity"));
        if (client.receive().status != 200) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace bellows::serve
