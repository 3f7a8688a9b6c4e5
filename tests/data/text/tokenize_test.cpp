#include "bellows/data/tokenize.h"

#include <ATen/ops/equal.h>

#include <atomic>
#include <cctype>
#include <map>

#include "bellows/core/log.h"
#include "bellows/data/step_error.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A word's number is its length; full stops are 100.
std::vector<int64_t> word_lengths(std::string_view text) {
  std::vector<int64_t> tokens;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && std::isalpha(static_cast<unsigned char>(text[end]))) ++end;
    if (end > at) {
      tokens.push_back(static_cast<int64_t>(end - at));
    } else if (text[end++] == '.') {
      tokens.push_back(100);
    }
    at = end;
  }
  return tokens;
}

std::string text_of(int64_t i) {
  std::string text;
  for (int64_t word = 0; word < i * 7 % 13; ++word)
    text += std::string(static_cast<size_t>(1 + (i + word) % 9), 'a') + " ";
  return text + ".";
}

/// The same 60 texts as a WebDataset and as JSON Lines.
std::map<std::string, Dataset> texts(const TemporaryFolder& folder) {
  std::vector<Member> members;
  std::string lines;
  members.reserve(60);
  for (int64_t i = 0; i < 60; ++i) {
    members.push_back({c10::str("s", i, ".txt"), text_of(i)});
    members.push_back({c10::str("s", i, ".cls"), c10::str(i % 3)});
    lines += c10::str("{\"id\": ", i, ", \"story\": \"", text_of(i), "\", \"label\": ", i % 3, "}\n");
  }
  write_shard(folder / "x.tar", members);
  write_text_file(folder / "x.jsonl", lines);
  return {{"tar", open(folder / "x.tar").tokenize(word_lengths)},
          {"jsonl", open(folder / "x.jsonl").tokenize(word_lengths, "story")}};
}

TEST(Tokenize, PutsTokensInThePlaceOfTheText) {
  const TemporaryFolder folder;
  for (const auto& [kind, set] : texts(folder)) {
    const Sample sample = set.source()->read(5);
    const std::vector<int64_t> expected = word_lengths(text_of(5));
    const Field* tokens = sample.find("tokens");
    ASSERT_TRUE(tokens) << kind;
    EXPECT_EQ(tokens->sizes, c10::IntArrayRef({static_cast<int64_t>(expected.size())}));
    EXPECT_TRUE(std::ranges::equal(tokens->bytes, std::as_bytes(std::span(expected)))) << kind;
    EXPECT_FALSE(sample.find("txt") || sample.find("story"));
    EXPECT_TRUE(sample.find(kind == "tar" ? "cls" : "label")) << "the others stay";
  }
}

// From the file to rows: each token once, whatever the number of threads.
TEST(Tokenize, ComposesWithPackingAndBuckets) {
  const TemporaryFolder folder;
  std::vector<std::string> expected;
  for (const auto& [kind, set] : texts(folder)) {
    const std::vector<int64_t> lengths = read_lengths(*set.source(), "tokens");
    for (int64_t i = 0; i < 60; ++i)
      ASSERT_EQ(lengths[static_cast<size_t>(i)], static_cast<int64_t>(word_lengths(text_of(i)).size()));
    const SourcePtr rows = packed(set.source(), "tokens", pack_rows(lengths, {.row_length = 16, .window = 20}));
    for (const int64_t threads : {0, 3}) {
      Loader loader = Dataset(rows).shuffle(2).batch(4).threads(threads).loader();
      const auto batches = fingerprints(loader, 1);
      if (expected.empty()) expected = batches;
      EXPECT_EQ(batches, expected) << kind << ", " << threads << " threads";
      std::map<int64_t, int64_t> found, wanted;
      for (const Batch& batch : loader.epoch(0)) {
        const at::Tensor tokens = batch["tokens"].contiguous(), segments = batch["segment_ids"].contiguous();
        for (int64_t i = 0; i < tokens.numel(); ++i)
          if (segments.const_data_ptr<int64_t>()[i] > 0) ++found[tokens.const_data_ptr<int64_t>()[i]];
      }
      for (int64_t i = 0; i < 60; ++i)
        for (const int64_t token : word_lengths(text_of(i))) ++wanted[token];
      EXPECT_EQ(found, wanted);
    }
    const OrderPtr order = bucketed(lengths, {.together = 4, .window = 60});
    EXPECT_LT(padding_share(order->positions(*set.source(), 1, 0), lengths, 4),
              padding_share(shuffled()->positions(*set.source(), 1, 0), lengths, 4) / 2);
  }
}

TEST(Tokenize, TellsRefusedTextsFromMistakes) {
  const TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.txt", "good"}, {"b.txt", "bad"}, {"c.txt", "good"}});
  const auto with = [&](const Tokenizer& tokenizer) {
    return open(folder / "x.tar").tokenize(tokenizer).on_bad_sample(OnBadSample::skip).retries(3).batch(3);
  };
  const auto before = set_log_sink(nullptr);
  Loader refusing = with([](std::string_view text) -> std::vector<int64_t> {
                      TORCH_CHECK_VALUE(text != "bad", "no such word");
                      return {1, 2};
                    }).loader();
  EXPECT_THAT(refusing.next()->ids(), ElementsAre(0, 2));
  set_log_sink(before);
  std::atomic<int> calls{0};
  Loader broken = with([&](std::string_view text) -> std::vector<int64_t> {
                    if (text != "bad") return {1, 2};
                    ++calls;
                    throw std::logic_error("broken");
                  }).loader();
  try {
    broken.next();
    ADD_FAILURE() << "expected an error";
  } catch (const StepError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("tokenize: sample \"b\" (id 1), txt at byte "));
  }
  EXPECT_EQ(calls, 1) << "not tried again";
}

TEST(Tokenize, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  const std::map<std::string, Dataset> sets = texts(folder);
  EXPECT_THAT(error_of([&] { open(folder / "x.tar").tokenize(word_lengths, "text").source()->read(0); }),
              HasSubstr("sample \"s0\" (id 0), txt at byte 512 of " + (folder / "x.tar") + " has no text \"text\""));
  EXPECT_THAT(error_of([&] { open(folder / "x.jsonl").tokenize(word_lengths, "id").source()->read(0); }),
              HasSubstr("has numbers in \"id\""));
  EXPECT_THAT(error_of([&] { sets.at("tar").tokenize(word_lengths, "cls").source()->read(0); }),
              HasSubstr("has \"tokens\" already"));
  EXPECT_THAT(error_of([&] { open(folder / "x.tar").tokenize({}); }), HasSubstr("got no function"));
}

}  // namespace
}  // namespace bellows::data::testing
