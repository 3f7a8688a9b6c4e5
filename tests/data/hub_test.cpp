#include "bellows/io/network/hub.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "bellows/core/log.h"
#include "bellows/io/hash.h"
#include "tests/data/cache_support.h"
#include "tests/support/errors.h"
#include "tests/support/scoped_variable.h"

namespace bellows::io::testing {

namespace {

using bellows::testing::ScopedVariable;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string commit(40, 'c');

/// Keeps what is reported at the end of tasks.
struct ProgressSink final : LogSink {
  void write(LogLevel, std::string_view) override {}
  void progress(const ProgressState& state) override {
    if (state.finished) lines.push_back(c10::str(state.label, " ", state.done, "/", state.total, " ", state.unit));
  }
  std::vector<std::string> lines;
};

/// A server that is the Hub, and a cache.
class HubTest : public FileCacheTest {
 protected:
  std::string text_of(const std::string& address) const {
    return std::string(as_text(fetch_file(address, options()).content->bytes()));
  }
  std::string refusal_of(const std::string& address) const {
    return message_of([&] { fetch_file(address, options()); });
  }
  ScopedVariable endpoint{"HF_ENDPOINT", server.url("/")}, token{"HF_TOKEN", ""}, offline{"HF_HUB_OFFLINE", ""};
};

}  // namespace

TEST(HubAddress, HasRepositoryRevisionAndFile) {
  const HubAddress whole = parse_hub_address("hf://org/name");
  EXPECT_EQ(whole.repository, "org/name");
  EXPECT_EQ(whole.revision, "main");
  EXPECT_EQ(whole.file, "");
  EXPECT_EQ(whole.text(), "hf://org/name");
  EXPECT_EQ(whole.with_file("config.json").text(), "hf://org/name/config.json");
  const HubAddress file = parse_hub_address("hf://org/na-me_1.5@v2/onnx/model x.bin#sha256=12");
  EXPECT_EQ(file.repository, "org/na-me_1.5");
  EXPECT_EQ(file.revision, "v2");
  EXPECT_EQ(file.file, "onnx/model x.bin");
  for (const char* address : {"hf://org/name@refs/pr/12/f", "hf://org/name@refs%2Fpr%2F12/f"}) {
    EXPECT_EQ(parse_hub_address(address).revision, "refs/pr/12");
    EXPECT_EQ(parse_hub_address(address).file, "f");
    EXPECT_EQ(parse_hub_address(address).text(), "hf://org/name@refs%2Fpr%2F12/f");
  }
}

TEST(HubAddress, OtherFormsAreRefused) {
  const auto refusal = [](const std::string& address) { return message_of([&] { parse_hub_address(address); }); };
  for (const char* address : {"hf://", "hf://org", "hf:///name", "hf://org/", "hf://o rg/name", "hf://../name",
                              "hf://org/name@", "hf://org/name@a b", "hf://org/name@../..", "hf://org/n?me"}) {
    EXPECT_THAT(refusal(address), HasSubstr("expected ")) << address;
    EXPECT_THAT(refusal(address), HasSubstr(address)) << address;
  }
  for (const char* address : {"hf://org/name/../f", "hf://org/name//f", "hf://org/name/", "hf://org/name/a/./f"})
    EXPECT_THAT(refusal(address), HasSubstr("such as hf://org/name/model.safetensors")) << address;
  EXPECT_THAT(refusal("hf://gpt2"), HasSubstr("such as openai-community/gpt2"));
  EXPECT_THAT(refusal("hf://datasets/org/name"), HasSubstr("Only model repositories are supported"));
  EXPECT_THAT(refusal("https://host/f"), HasSubstr("expected hf://ORG/NAME"));
}

TEST_F(HubTest, FetchesOnceAndAsksOnce) {
  server.put("/org/name/resolve/main/config.json", "{}");
  server.put("/org/name/resolve/refs%2Fpr%2F1/a%20b/f", "pull");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(text_of("hf://org/name/config.json"), "{}");
  EXPECT_EQ(server.served().size(), 2U);
  EXPECT_EQ(server.served().back().status, 304);
  EXPECT_EQ(server.body_bytes("/org/name/resolve/main/config.json"), 2);
  EXPECT_EQ(text_of("hf://org/name@refs/pr/1/a b/f"), "pull");
  EXPECT_EQ(server.served().back().authorization, "");
}

TEST_F(HubTest, ResumesCutDownloadsAndShowsProgress) {
  const std::string path = "/org/name/resolve/main/f";
  const std::string content = bytes_of('x', 3'000'000) + bytes_of('y', 3'000'000);
  server.put(path, content);
  const auto sink = std::make_shared<ProgressSink>();
  const std::shared_ptr<LogSink> before = set_log_sink(sink);
  const FileCacheOptions roomy = options(int64_t{10} << 20);
  for (int i = 0; i < 3; ++i) server.fault(path, {.drop_after = 500'000});  // less than counts as progress
  EXPECT_THAT(message_of([&] { fetch_file("hf://org/name/f", roomy); }), HasSubstr("3 attempts failed"));
  EXPECT_EQ(files(".part").size(), 1U) << "the part is kept, and is no complete file";
  EXPECT_EQ(as_text(fetch_file("hf://org/name/f", roomy).content->bytes()), content);
  set_log_sink(before);
  EXPECT_EQ(server.served().back().range, "bytes=1500000-");
  EXPECT_EQ(server.body_bytes(path), 6'000'000);
  EXPECT_TRUE(files(".part").empty());
  EXPECT_THAT(sink->lines, ::testing::Contains("downloading " + server.url(path) + " 6/6 MB"));
}

TEST_F(HubTest, ChecksumsAreVerified) {
  server.put("/f", "content");
  const std::string right = hash_hex("sha256", as_bytes("content")), wrong(64, 'a');
  EXPECT_EQ(text_of(server.url("/f") + "#sha256=" + right), "content");
  const size_t asked = server.served().size();
  std::string upper = right;
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  EXPECT_EQ(text_of(server.url("/f") + "#sha256=" + upper), "content");
  EXPECT_EQ(server.served().size(), asked) << "the content cannot change";
  EXPECT_THAT(refusal_of(server.url("/f") + "#sha256=" + wrong),
              AllOf(HasSubstr("expected the SHA-256 " + wrong + ", found " + right + " (7 bytes)"),
                    HasSubstr("Check the checksum")));
  server.put_file("/f", {.content = "changed", .etag = "\"v2\""});
  EXPECT_EQ(text_of(server.url("/f") + "#sha256=" + hash_hex("sha256", as_bytes("changed"))), "changed")
      << "it is fetched again after a difference";
  for (const char* part : {"#sha256=12", "#sha256=", "#md5=0123456789abcdef", "#"})
    EXPECT_THAT(refusal_of(server.url("/f") + part), HasSubstr("expected #sha256= and 64 hexadecimal digits"));
  EXPECT_THAT(refusal_of(server.url("/f") + "#sha256=" + std::string(64, 'g')), HasSubstr("64 hexadecimal digits"));
}

TEST_F(HubTest, CommitsNeedNoSecondRequest) {
  server.put("/org/name/resolve/" + commit + "/f", "fixed");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(text_of("hf://org/name@" + commit + "/f"), "fixed");
  EXPECT_EQ(server.served().size(), 1U);
}

TEST_F(HubTest, OfflineUsesOnlyTheCache) {
  server.put("/org/name/resolve/main/f", "text");
  server.put("/g", "text");
  EXPECT_EQ(text_of("hf://org/name/f"), "text");
  const ScopedVariable now("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(text_of("hf://org/name/f"), "text");
  EXPECT_EQ(server.served().size(), 1U);
  EXPECT_THAT(refusal_of("hf://org/name/other"),
              AllOf(HasSubstr("hf://org/name/other is not in the cache (" + (folder / "cache/files")),
                    HasSubstr("Run once without HF_HUB_OFFLINE")));
  EXPECT_THAT(refusal_of(server.url("/g")), HasSubstr("is not in the cache"));
  EXPECT_EQ(server.served().size(), 1U);
}

TEST_F(HubTest, RefusalsSayWhatToDo) {
  EXPECT_THAT(refusal_of("hf://org/name/f"),
              AllOf(HasSubstr("hf://org/name/f: the server answered with status 404"),
                    HasSubstr("Check the names of the repository, the revision and the file")));
  EXPECT_THROW(fetch_file("hf://org/name/f", options()), MissingRemoteFile);
  EXPECT_THAT(refusal_of(server.url("/f")), HasSubstr("status 404"));
  server.always("/org/name/resolve/main/f", {.status = 401});
  EXPECT_THAT(refusal_of("hf://org/name/f"), AllOf(HasSubstr("status 401"), HasSubstr("private or gated"),
                                                   HasSubstr("set the environment variable HF_TOKEN")));
  const ScopedVariable token_now("HF_TOKEN", "hf_secret");
  EXPECT_THAT(refusal_of("hf://org/name/f"),
              AllOf(HasSubstr("The token in HF_TOKEN is invalid"), HasSubstr("https://huggingface.co/org/name"),
                    Not(HasSubstr("hf_secret"))));
  server.always("/org/name/resolve/main/f", {.status = 403});
  EXPECT_THAT(refusal_of("hf://org/name/f"), HasSubstr("gives no access to this repository"));
  EXPECT_THAT(refusal_of("hf://org/name"), HasSubstr("names a repository. Expected a file: hf://org/name/FILE"));
}

TEST_F(HubTest, TheTokenIsSentToTheHubOnly) {
  const ScopedVariable token_now("HF_TOKEN", "hf_secret");
  HttpServer other;
  other.put("/blob", "weights");
  other.put("/plain", "plain");
  server.put("/org/name/resolve/main/f", "");
  server.always("/org/name/resolve/main/f", {.redirect = other.url("/blob")});
  EXPECT_EQ(text_of("hf://org/name/f"), "weights");
  EXPECT_EQ(server.served().back().authorization, "Bearer hf_secret");
  EXPECT_EQ(other.served().back().authorization, "") << "after a redirect to another host";
  EXPECT_EQ(text_of(other.url("/plain")), "plain");
  EXPECT_EQ(other.served().back().authorization, "");
}

TEST_F(HubTest, BadVariablesAreNamed) {
  {
    const ScopedVariable bad("HF_ENDPOINT", "ftp://host");
    EXPECT_THAT(refusal_of("hf://org/name/f"), HasSubstr("HF_ENDPOINT: expected https://… or http://…, got "));
  }
  const ScopedVariable bad("HF_TOKEN", "two words");
  EXPECT_THAT(refusal_of("hf://org/name/f"),
              AllOf(HasSubstr("HF_TOKEN: expected a token"), Not(HasSubstr("two words"))));
  EXPECT_THAT(refusal_of("ftp://host/f"), HasSubstr("expected an address hf://…, https://… or http://…"));
}

}  // namespace bellows::io::testing
