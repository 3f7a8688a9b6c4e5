#include "bellows/io/network/http.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <span>

#include "bellows/io/network/partial_file.h"
#include "tests/support/errors.h"
#include "tests/support/http_server.h"

namespace bellows::io {
namespace {

using bellows::testing::HttpFault;
using bellows::testing::HttpServed;
using bellows::testing::HttpServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr HttpOptions quick{.attempts = 4, .connect_timeout_ms = 2000, .stall_timeout_ms = 1000, .backoff_ms = 2};

/// Keeps what comes, as a file would.
struct MemorySink final : HttpSink {
  bool begin(const HttpFile& now, uint64_t offset) override {
    begins.push_back(offset);
    file = now;
    content.resize(offset);
    return true;
  }
  void write(ByteSpan bytes) override { content += as_text(bytes); }
  std::string content;
  HttpFile file;
  std::vector<uint64_t> begins;
};

std::string numbers(size_t bytes) {
  std::string text;
  for (size_t i = 0; text.size() < bytes; ++i) text += std::to_string(i) + " ";
  text.resize(bytes);
  return text;
}

class HttpTest : public ::testing::Test {
 protected:
  HttpFile get(const std::string& path = "/f") { return http_get(server.url(path), {}, 0, sink, quick); }
  std::string failure(const std::string& path = "/f") {
    return message_of([&] { get(path); });
  }
  HttpServer server;
  MemorySink sink;
  const std::string content = numbers(300'000);
};

TEST_F(HttpTest, ReadsManyRangesOnOneConnection) {
  server.keep_connections();
  server.put("/f", content);
  const HttpFile file = http_look(server.url("/f"), quick);
  const int64_t before = server.connections();
  for (uint64_t at = 0; at < 20; ++at) {
    std::string out(100, '?');
    ASSERT_TRUE(http_read(server.url("/f"), file, at * 1000, std::as_writable_bytes(std::span(out)), quick));
    ASSERT_EQ(out, content.substr(at * 1000, 100));
  }
  EXPECT_LE(server.connections() - before, 1);
  EXPECT_EQ(get().size, content.size());
  EXPECT_LE(server.connections() - before, 1) << "nor has a whole file one of its own";
}

TEST_F(HttpTest, AConnectionThatTheServerEndedIsMadeAnew) {
  server.keep_connections();
  server.put("/f", content);
  for (int i = 0; i < 3; ++i) {
    server.fault("/f", {.drop_after = 1000});
    sink = {};
    get();
    EXPECT_TRUE(sink.content == content);
  }
}

TEST_F(HttpTest, AForkedChildMakesConnectionsOfItsOwn) {
  server.keep_connections();
  server.put("/f", content);
  get();
  const int64_t before = server.connections();
  const pid_t child = fork();
  if (child == 0) {
    MemorySink mine;
    try {
      http_get(server.url("/f"), {}, 0, mine, quick);
    } catch (...) {
      _exit(2);
    }
    _exit(mine.content == content ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(server.connections(), before + 1);
  sink = {};
  get();
  EXPECT_TRUE(sink.content == content);
  EXPECT_EQ(server.connections(), before + 1) << "the parent's is as it was";
}

TEST_F(HttpTest, GetsAFile) {
  server.put("/f", content);
  const HttpFile file = get();
  EXPECT_TRUE(sink.content == content);
  EXPECT_EQ(file, (HttpFile{content.size(), "\"v1\"", ""}));
  server.put("/empty", "");
  EXPECT_EQ(get("/empty").size, 0U);
  EXPECT_EQ(sink.content, "");
}

TEST_F(HttpTest, LooksWithoutFetching) {
  server.put("/f", content);
  EXPECT_EQ(http_look(server.url("/f"), quick), (HttpFile{content.size(), "\"v1\"", ""}));
  EXPECT_LE(server.body_bytes("/f"), 1);
  server.put("/empty", "");
  EXPECT_EQ(http_look(server.url("/empty"), quick).size, 0U);
  server.put_file("/whole", {.content = numbers(50), .ranges = false});
  EXPECT_EQ(http_look(server.url("/whole"), quick).size, 50U);
  EXPECT_THAT(message_of([&] { http_look(server.url("/none"), quick); }), HasSubstr("status 404"));
}

TEST_F(HttpTest, ReadsAPart) {
  server.put("/f", content);
  const HttpFile known{content.size(), "\"v1\"", ""};
  const auto read = [&](uint64_t offset, size_t bytes, const std::string& path = "/f") {
    std::string out(bytes, '?');
    return http_read(server.url(path), known, offset, std::as_writable_bytes(std::span(out)), quick) ? out : "none";
  };
  EXPECT_EQ(read(100, 50), content.substr(100, 50));
  EXPECT_EQ(server.served().back().range, "bytes=100-149");
  EXPECT_EQ(read(0, 10), content.substr(0, 10));
  EXPECT_EQ(read(content.size() - 7, 7), content.substr(content.size() - 7));
  EXPECT_EQ(read(content.size(), 0), "");
  EXPECT_EQ(server.body_bytes("/f"), 67);
  for (const int64_t after : {0, 1, 70'000}) server.fault("/f", {.drop_after = after});
  EXPECT_TRUE(read(5, 200'000) == content.substr(5, 200'000));
  EXPECT_EQ(server.served().back().range, "bytes=70006-200004");
  EXPECT_THAT(message_of([&] { read(content.size(), 1); }), HasSubstr("expected a part of the 300000 bytes"));
  server.put_file("/whole", {.content = content, .ranges = false});
  EXPECT_EQ(read(100, 50, "/whole"), "none");
  EXPECT_THAT(message_of([&] { read(0, 1, "/gone"); }), HasSubstr("status 404"));
}

TEST_F(HttpTest, ReadsNoPartOfAnotherFile) {
  const HttpFile known{content.size(), "\"v1\"", ""};
  std::string out(50, '?');
  const auto read = [&](uint64_t offset) {
    return http_read(server.url("/f"), known, offset, std::as_writable_bytes(std::span(out)), quick);
  };
  server.put_file("/f", {.content = content, .etag = "\"v2\""});
  EXPECT_FALSE(read(100));
  server.put("/f", content.substr(0, 1000));
  EXPECT_FALSE(read(100)) << "shorter";
  EXPECT_FALSE(read(2000)) << "shorter still";
  server.put("/f", content);
  server.fault("/f", {.drop_after = 10});
  server.fault("/f", {.set_etag = "\"v2\""});
  EXPECT_FALSE(read(100)) << "changed between two requests";
}

TEST_F(HttpTest, GoesOnWhereTheConnectionBroke) {
  server.put("/f", content);
  for (const int64_t after : {0, 1, 70'000}) server.fault("/f", {.drop_after = after});
  get();
  EXPECT_TRUE(sink.content == content);
  EXPECT_EQ(server.served().size(), 4U);
  EXPECT_EQ(server.served().back().range, "bytes=70001-");
  EXPECT_EQ(server.served().back().if_range, "\"v1\"");
}

TEST_F(HttpTest, StartsAgainWhereItCannotGoOn) {
  server.put_file("/no_ranges", {.content = content, .ranges = false});
  server.fault("/no_ranges", {.drop_after = 1000});
  get("/no_ranges");
  EXPECT_TRUE(sink.content == content);
  EXPECT_THAT(sink.begins, ElementsAre(0U, 0U));
  server.put_file("/no_etag", {.content = content, .etag = ""});
  server.fault("/no_etag", {.drop_after = 1000});
  get("/no_etag");
  EXPECT_TRUE(sink.content == content);
  EXPECT_EQ(server.served().back().range, "") << "nothing would tell that the parts belong together";
  server.put_file("/weak", {.content = content, .etag = "W/\"v1\""});
  server.fault("/weak", {.drop_after = 1000});
  get("/weak");
  EXPECT_TRUE(sink.content == content);
  EXPECT_EQ(server.served().back().range, "");
}

TEST_F(HttpTest, StartsAgainWhenTheFileChangesMeanwhile) {
  server.put("/f", content);
  server.fault("/f", {.drop_after = 1000});
  server.fault("/f", {.set_etag = "\"v2\""});
  EXPECT_EQ(get().etag, "\"v2\"");
  EXPECT_TRUE(sink.content == content);
  EXPECT_THAT(sink.begins, ElementsAre(0U, 0U));
}

TEST_F(HttpTest, StartsAgainWhenTheFileIsShorterNow) {
  server.put("/f", numbers(100));
  const HttpFile file = http_get(server.url("/f"), {200, "\"v1\"", ""}, 150, sink, quick);
  EXPECT_EQ(file.size, 100U);
  EXPECT_EQ(sink.content, numbers(100));
}

TEST_F(HttpTest, AsksWhetherAWholeFileIsUnchanged) {
  server.put("/f", content);
  const HttpFile known{content.size(), "\"v1\"", ""};
  EXPECT_EQ(http_get(server.url("/f"), known, content.size(), sink, quick), known);
  EXPECT_TRUE(sink.begins.empty());
  EXPECT_EQ(server.body_bytes("/f"), 0);
  server.put_file("/f", {.content = numbers(10), .etag = "\"v2\""});
  EXPECT_EQ(http_get(server.url("/f"), known, content.size(), sink, quick).etag, "\"v2\"");
  EXPECT_EQ(sink.content, numbers(10));
}

TEST_F(HttpTest, RepeatsWhatMayPass) {
  server.put("/f", content);
  server.fault("/f", {.status = 503});
  server.fault("/f", {.status = 429});
  server.fault("/f", {.status = 500});
  get();
  EXPECT_TRUE(sink.content == content);
  server.always("/f", {.status = 503});
  const std::string message = failure();
  EXPECT_EQ(message,
            "http: cannot download " + server.url("/f") + ": the server answered with status 503. 4 attempts failed.");
}

TEST_F(HttpTest, DoesNotRepeatWhatWillNotPass) {
  EXPECT_THAT(failure("/none"), HasSubstr(server.url("/none") + ": the server answered with status 404."));
  EXPECT_EQ(server.served().size(), 1U);
  server.always("/f", {.status = 403, .body = "<Error><Code>AccessDenied</Code><Key>SECRET</Key></Error>"});
  const std::string message = failure("/f?X-Amz-Signature=SECRET&X-Amz-Credential=SECRET");
  EXPECT_THAT(message, HasSubstr("status 403 \"AccessDenied\". If the URL is signed, it may have expired."));
  EXPECT_THAT(message, Not(HasSubstr("SECRET")));
  EXPECT_EQ(server.served().back().query, "X-Amz-Signature=SECRET&X-Amz-Credential=SECRET");
  EXPECT_EQ(server.served().size(), 2U);
}

TEST_F(HttpTest, FollowsRedirectsButNotForEver) {
  server.put("/f", content);
  server.fault("/a", {.redirect = server.url("/f")});
  get("/a");
  EXPECT_TRUE(sink.content == content);
  server.always("/loop", {.redirect = server.url("/loop")});
  EXPECT_THAT(failure("/loop"), HasSubstr("redirects"));
  server.always("/file", {.redirect = "file:///etc/passwd"});
  EXPECT_THAT(failure("/file"), HasSubstr(server.url("/file")));
}

TEST_F(HttpTest, NoticesAWrongLength) {
  server.put("/f", content);
  server.always("/f", {.claim_more = 7});
  EXPECT_THAT(failure(), HasSubstr("(300000 of 300007 bytes are already downloaded). 4 attempts failed."));
  server.put_file("/chunked", {.content = content, .length = false});
  EXPECT_THAT(failure("/chunked"), HasSubstr("the response has no file size"));
}

TEST_F(HttpTest, BreaksOffWhatStandsStill) {
  server.put("/f", content);
  server.fault("/f", {.stall_after = 5000});
  get();
  EXPECT_TRUE(sink.content == content);
  EXPECT_EQ(server.served().back().range, "bytes=5000-");
}

TEST_F(HttpTest, EndsOnRequest) {
  server.put("/f", content);
  server.always("/f", {.stall_after = 5000});
  std::stop_source stop;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  const auto start = std::chrono::steady_clock::now();
  HttpOptions patient = quick;
  patient.stall_timeout_ms = 60'000;
  EXPECT_THAT(message_of([&] { http_get(server.url("/f"), {}, 0, sink, patient, stop.get_token()); }),
              HasSubstr("stopped on request"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  stopper.join();
}

TEST_F(HttpTest, SaysWhyThereIsNoConnection) {
  EXPECT_THAT(
      message_of([&] { http_get("http://127.0.0.1:1/f", {}, 0, sink, quick); }),
      ::testing::AllOf(StartsWith("http: cannot download http://127.0.0.1:1/f: "), HasSubstr("attempts failed")));
  EXPECT_THAT(message_of([&] { http_get("ftp://host/f", {}, 0, sink, quick); }), HasSubstr("expected http://"));
}

TEST(HttpUrls, AreShownWithoutSecrets) {
  EXPECT_EQ(public_url("https://user:pw@host/a/b.tar?X-Amz-Signature=s#f"), "https://host/a/b.tar");
  EXPECT_EQ(public_url("https://host/a@b/c?d@e"), "https://host/a@b/c");
  EXPECT_EQ(public_url("https://host?q=1"), "https://host");
  EXPECT_EQ(public_url("a/b?c"), "a/b?c");
  EXPECT_EQ(unsigned_url("https://u:p@host/f?a=1&X-Amz-Date=2&b=3&x-amz-signature=4#x"), "https://host/f?a=1&b=3");
  EXPECT_EQ(unsigned_url("https://host/f?Expires=1&Signature=2"), "https://host/f");
  EXPECT_EQ(unsigned_url("https://host/f?sv=1&se=2&sig=3&part=4"), "https://host/f?part=4");
  EXPECT_EQ(unsigned_url("https://host/f?st=1&policy=2"), "https://host/f?st=1&policy=2") << "no signature is there";
}

TEST(PartialFile, HasWhatIsNeeded) {
  std::string content(100'000, 'a'), asked;
  content[50'000] = 'b';
  PartialFile file(content.size(), [&](uint64_t offset, std::span<std::byte> out) {
    asked += c10::str(offset, "+", out.size(), " ");
    std::memcpy(out.data(), content.data() + offset, out.size());
  });
  EXPECT_EQ(file.bytes().size(), content.size());
  EXPECT_EQ(file.bytes()[50'000], std::byte{0});
  file.need(49'000, 51'000);
  file.need(49'500, 50'500);
  file.need(50'000, 52'000);
  file.need(99'999, 200'000);
  file.need(300'000, 400'000);
  EXPECT_EQ(asked, "49000+2000 51000+1000 99999+1 ");
  EXPECT_EQ(as_text(file.bytes()).substr(49'000, 3000), content.substr(49'000, 3000));
  EXPECT_EQ(file.bytes()[99'999], std::byte{'a'});
  EXPECT_THAT(message_of([] { PartialFile(uint64_t{1} << 60, {}); }),
              HasSubstr("cannot reserve address space for a file of"));
  EXPECT_TRUE(PartialFile(0, {}).bytes().empty());
}

}  // namespace
}  // namespace bellows::io
