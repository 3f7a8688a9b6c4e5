#include "bellows/data/sink.h"

#include <sys/resource.h>

#include <csignal>

#include "bellows/data/formats/beton_source.h"
#include "bellows/data/formats/pack_source.h"
#include "tests/data/support.h"
#include "tests/support/errors.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;

/// What `action` says while no file can grow beyond 100 kB, as on a disk that is full.
std::string message_on_a_full_disk(const std::function<void()>& action) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{100'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string message = message_of(action);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  return message;
}

struct Case {
  const char* name;
  std::unique_ptr<Sink> (*open)(const std::string& path);
};

void PrintTo(const Case& sink, std::ostream* out) {
  *out << sink.name;
}

struct FailedWrite : ::testing::TestWithParam<Case> {};

Sample sample_of(std::string_view key, std::string_view text) {
  Sample sample;
  sample.key = key;
  Field& field = sample.fields.emplace_back();
  field.name = "txt";
  field.bytes = io::as_bytes(text);
  return sample;
}

}  // namespace

// Room that comes too late makes no whole file of one with a gap.
TEST_P(FailedWrite, PutsNothingInPlace) {
  const TemporaryFolder folder;
  const std::string text(1'500'000, 'x');
  {
    const auto sink = GetParam().open(folder / "a");
    const std::string message = message_on_a_full_disk([&] {
      for (const char* key : {"a", "b", "c"}) sink->write(sample_of(key, text));
    });
    EXPECT_THAT(message, HasSubstr("File too large"));
    EXPECT_THAT(message_of([&] { sink->write(sample_of("d", text)); }), HasSubstr("an earlier write failed"));
    EXPECT_THAT(message_of([&] { sink->close(); }), HasSubstr("an earlier write failed"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST_P(FailedWrite, AtTheEndPutsNothingInPlace) {
  const TemporaryFolder folder;
  const std::string text(99'000, 'x');
  {
    const auto sink = GetParam().open(folder / "a");
    sink->write(sample_of("a", text));
    EXPECT_THAT(message_on_a_full_disk([&] {
                  sink->write(sample_of("b", text));
                  sink->close();
                }),
                HasSubstr("File too large"));
    EXPECT_THAT(message_of([&] { sink->close(); }), HasSubstr("an earlier write failed"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

INSTANTIATE_TEST_SUITE_P(
    Sinks, FailedWrite,
    ::testing::Values(Case{"Pack", [](const std::string& path) { return pack_sink(path, {.page_bytes = 1 << 20}); }},
                      Case{"Beton", [](const std::string& path) { return beton_sink(path, {.page_size = 2 << 20}); }},
                      Case{"WebDataset", [](const std::string& path) { return webdataset_sink(path); }}),
    [](const auto& setup) { return setup.param.name; });

TEST(WebDatasetPattern, TwoPercentSignsAreOne) {
  const TemporaryFolder folder;
  const std::string text = "text";
  const auto sink = webdataset_sink(folder / "100%%-%02d%%.tar", {.max_samples = 1});
  for (const char* key : {"a", "b"}) sink->write(sample_of(key, text));
  sink->close();
  EXPECT_TRUE(std::filesystem::exists(folder / "100%-00%.tar"));
  EXPECT_TRUE(std::filesystem::exists(folder / "100%-01%.tar"));
}

}  // namespace bellows::data::testing
