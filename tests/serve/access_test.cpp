#include "bellows/serve/access/access_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "bellows/core/log.h"
#include "tests/serve/started_server.h"

namespace bellows::serve {

namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* first_token = "first-token-0123456789";
constexpr const char* second_token = "second-token-0123456789";

/// Collects the log while it exists.
class CollectedLog final : public LogSink {
 public:
  void write(LogLevel, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    text_.append(message).append("\n");
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

struct UseLog {
  explicit UseLog(std::shared_ptr<LogSink> sink) : before(set_log_sink(std::move(sink))) {}
  ~UseLog() { set_log_sink(before); }
  std::shared_ptr<LogSink> before;
};

std::string bearer(const std::string& token) {
  return "Authorization: Bearer " + token + "\r\n";
}

void use_tokens(ServerOptions& options, const TestFolder& folder) {
  folder.write("tokens", std::string("# clients\nteam:") + first_token + "\n\n  " + second_token + "  \r\n");
  options.access.token_file = folder.path() + "/tokens";
}

std::string parse_error(const std::string& text) {
  try {
    const AccessTokens tokens(text, "tokens.txt");
    return "";
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
}

}  // namespace

TEST(AccessTokens, FindsClients) {
  const AccessTokens tokens(std::string("a:") + first_token + "\n" + second_token, "tokens.txt");
  EXPECT_EQ(tokens.client(std::string("Bearer ") + first_token), "a");
  EXPECT_EQ(tokens.client(std::string("bearer   ") + first_token), "a");
  EXPECT_EQ(tokens.client(std::string("Bearer ") + second_token), "client 2");
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string(first_token),
        std::string("Basic ") + first_token, std::string("Bearer a:") + first_token,
        std::string("Bearer ") + first_token + first_token, std::string("Bearer first-token-012345678"),
        std::string("Bearer first-token-0123456780"), std::string("Bearer \0", 8), std::string(10000, 'x')})
    EXPECT_FALSE(tokens.client(wrong)) << wrong;
}

TEST(AccessTokens, RejectsInvalidFiles) {
  EXPECT_THAT(parse_error(""), HasSubstr("expected at least one token"));
  EXPECT_THAT(parse_error("# nothing\n\n"), HasSubstr("expected at least one token"));
  for (const char* wrong :
       {"secret one two", "secret:", ":secret", "a b:secret", "s\xc3\xa4", "a:se:cret", "\"secret\""}) {
    EXPECT_THAT(parse_error(std::string("good\n") + wrong), HasSubstr("tokens.txt:2: expected TOKEN or NAME:TOKEN"));
    EXPECT_THAT(parse_error(std::string("good\n") + wrong), Not(HasSubstr("secret"))) << "messages contain no tokens";
  }
}

TEST(AccessTokens, ChecksTheAddress) {
  for (const char* address : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_NO_THROW(check_exposure(address, false, false)) << address;
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "::2"}) {
    EXPECT_THROW(check_exposure(address, false, false), c10::ValueError) << address;
    EXPECT_NO_THROW(check_exposure(address, true, false));
    EXPECT_NO_THROW(check_exposure(address, false, true));
  }
}

TEST(Access, ExpectsTokens) {
  StartedServer server(use_tokens);
  EXPECT_EQ(server.ask(infer("identity", bearer(first_token))).status, 200);
  EXPECT_EQ(server.ask(infer("identity", bearer(second_token))).status, 200);
  const auto expect_rejected = [&](const std::string& request) {
    const RawResponse response = server.ask(request);
    EXPECT_EQ(response.status, 401) << request;
    EXPECT_EQ(response.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_TRUE(json::parse(response.body).contains("error"));
  };
  expect_rejected(infer("identity"));
  expect_rejected(infer("identity", bearer("wrong-token-0123456789")));
  for (const char* url : {"/v2", "/v2/health/live", "/v2/health/ready", "/metrics", "/status", "/v2/models/identity",
                          "/v2/models/none", "/none", "//", "/%2f", "/metrics?x"})
    expect_rejected(get(url));
  expect_rejected(post("/v2/repository/models/identity/unload", ""));
  EXPECT_EQ(server.ask(get("/")).status, 200) << "the page asks for a token";
  EXPECT_EQ(server.ask(get("/none", bearer(first_token))).status, 404);
}

TEST(Access, RejectsPagesOfOtherSites) {
  const std::string page = "Origin: https://example.com\r\nSec-Fetch-Site: ",
                    same = "Origin: http://x\r\nSec-Fetch-Site: ";
  StartedServer server;
  EXPECT_EQ(server.ask(infer("identity", page + "cross-site\r\n")).status, 403);
  EXPECT_EQ(server.ask(post("/v2/repository/models/identity/unload", "", page + "cross-site\r\n")).status, 403);
  EXPECT_EQ(server.ask(infer("identity", same + "same-origin\r\n")).status, 200);
  EXPECT_EQ(server.ask(get("/", "Sec-Fetch-Site: cross-site\r\n")).status, 200) << "a link to the page";
  StartedServer with_tokens(use_tokens);
  EXPECT_EQ(with_tokens.ask(infer("identity", page + "cross-site\r\n" + bearer(first_token))).status, 200);
}

TEST(Access, RejectsBeforeTheBodyArrives) {
  StartedServer server(use_tokens);
  RawClient client(server.port());
  client.send(
      "POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
      "100000000\r\n\r\n");
  EXPECT_EQ(client.receive().status, 401);
  EXPECT_TRUE(client.closed_by_server());
}

TEST(Access, OpensHealthAndMetrics) {
  StartedServer server([](ServerOptions& options, const TestFolder& folder) {
    use_tokens(options, folder);
    options.access.open_health = options.access.open_metrics = true;
  });
  for (const char* url : {"/v2/health/live", "/v2/health/ready", "/metrics"})
    EXPECT_EQ(server.ask(get(url)).status, 200);
  for (const char* url :
       {"/v2/health", "/v2/health/ready/x", "/v2/models/identity/ready", "/status", "/v2/models/stats"})
    EXPECT_EQ(server.ask(get(url)).status, 401) << url;
}

TEST(Access, ReadsNewTokensWithoutRestart) {
  StartedServer server(use_tokens);
  const std::string request = infer("identity", bearer("third-token-0123456789"));
  EXPECT_EQ(server.ask(request).status, 401);
  server.folder().write("tokens", "third-token-0123456789");
  server.server().reload_files();
  while (server.ask(request).status != 200) std::this_thread::yield();
  EXPECT_EQ(server.ask(infer("identity", bearer(first_token))).status, 401);
  // A damaged file changes nothing. The server looks for changes every second.
  server.folder().write("tokens", "?");
  server.server().reload_files();
  EXPECT_EQ(server.ask(request).status, 200);
  server.folder().write("tokens", first_token);
  while (server.ask(request).status != 401) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST(Access, KeepsTokensOutOfLogsAndAnswers) {
  const auto log = std::make_shared<CollectedLog>();
  const UseLog use(log);
  std::string answers;
  {
    StartedServer server([](ServerOptions& options, const TestFolder& folder) {
      use_tokens(options, folder);
      options.http.access_log = true;
    });
    for (const char* token : {first_token, second_token, "wrong-token-0123456789"})
      answers += server.ask(infer("identity", bearer(token))).body;
    answers +=
        server.ask(get("/metrics", bearer(first_token))).body + server.ask(get("/status", bearer(first_token))).body;
    server.folder().write("tokens", "not valid wrong-token-0123456789");
    server.server().reload_files();
    while (log->text().find("The old tokens stay valid") == std::string::npos) std::this_thread::yield();
  }
  EXPECT_THAT(log->text(), HasSubstr(" team POST /v2/models/identity/infer 200 "));
  EXPECT_THAT(log->text(), HasSubstr(" client 4 POST /v2/models/identity/infer 200 "));
  EXPECT_THAT(log->text(), HasSubstr("POST /v2/models/identity/infer 401 "));
  EXPECT_THAT(log->text() + answers, Not(HasSubstr("-token-0123456789")));
}

TEST(Access, RefusesToListenWithoutTokens) {
  const auto start = [](const std::function<void(AccessOptions&)>& change) {
    const StartedServer server([&](ServerOptions& options, const TestFolder& folder) {
      use_tokens(options, folder);
      options.http.address = "0.0.0.0";
      change(options.access);
    });
  };
  EXPECT_THROW(start([](AccessOptions& access) { access.token_file.clear(); }), c10::ValueError);
  EXPECT_THROW(start([](AccessOptions& access) { access.token_file += ".none"; }), c10::ValueError);
  EXPECT_NO_THROW(start([](AccessOptions&) {}));
  EXPECT_NO_THROW(start([](AccessOptions& access) {
    access.token_file.clear();
    access.no_authentication = true;
  }));
}

}  // namespace bellows::serve
