#include <nlohmann/json.hpp>

#include "bellows/data/text/text_source.h"
#include "bellows/data/text/tokenizer.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json pair_golden(const std::string& name) {
  return nlohmann::json::parse(read_text_file(kGoldens + name));
}

class TextPair : public ::testing::Test {
 protected:
  TextTokenizer tokenizer() const {
    std::string lines;
    const auto golden = pair_golden("wordpiece.json");
    for (const auto& word : golden["cases"][0]["vocabulary"]) lines += word.get<std::string>() + "\n";
    write_text_file(folder_ / "vocab.txt", lines);
    return open_tokenizer(folder_ / "vocab.txt");
  }
  SourcePtr rows(const std::string& lines) const {
    write_text_file(folder_ / "pairs.jsonl", lines);
    return open(folder_ / "pairs.jsonl").source();
  }
  static std::vector<int64_t> numbers_of(const Sample& sample, const char* name) {
    const Field* field = sample.find(name);
    std::vector<int64_t> numbers(static_cast<size_t>(field->sizes[0]));
    std::memcpy(numbers.data(), field->bytes.data(), field->bytes.size());
    return numbers;
  }
  TemporaryFolder folder_;
};

TEST_F(TextPair, TokensAndTypesAreThoseOfTransformers) {
  const TextTokenizer tokens = tokenizer();
  const auto golden = pair_golden("wordpiece_pairs.json");
  ASSERT_EQ(golden["pairs"].size(), 66u);
  for (const auto& row : golden["pairs"]) {
    const auto pair = tokens.encode_pair(row[0].get<std::string>(), row[1].get<std::string>(), row[2].get<int64_t>());
    EXPECT_EQ(pair.tokens, row[3].get<std::vector<int64_t>>()) << row;
    EXPECT_EQ(pair.types, row[4].get<std::vector<int64_t>>()) << row;
  }
}

TEST_F(TextPair, ASourceHasTokensTypesAndLabels) {
  const TextTokenizer tokens = tokenizer();
  const SourcePtr source = rows(
      "{\"a\": \"hello world\", \"b\": \"it s\", \"label\": 1}\n"
      "{\"a\": \"hello\", \"b\": \"zero width soft hyphen\", \"label\": 0}\n");
  const auto texts = std::make_shared<const TextSource>(
      source, TextOptions{.field = "a", .pair_field = "b", .tokenizer = tokens, .max_tokens = 7});
  const Sample first = texts->read(0), second = texts->read(1);
  EXPECT_EQ(numbers_of(first, "tokens"), tokens.encode_pair("hello world", "it s").tokens);
  EXPECT_THAT(numbers_of(first, "token_type_ids"), ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_EQ(numbers_of(second, "tokens"), tokens.encode_pair("hello", "zero width soft hyphen", 7).tokens);
  EXPECT_NE(first.find("label"), nullptr);
  EXPECT_EQ(first.find("a"), nullptr);
  EXPECT_EQ(texts->counts().texts, 2);
  EXPECT_EQ(texts->counts().cut, 1);
  EXPECT_THAT(texts->lengths(), ElementsAre(7, 7));
  Loader loader = Dataset(texts).batch(2).threads(0).pad("tokens").pad("token_type_ids").loader();
  loader.start(0);
  const Batch batch = *loader.next();
  EXPECT_EQ(batch["tokens"].sizes(), (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(batch["token_type_ids"].sizes(), (std::vector<int64_t>{2, 7}));
}

TEST_F(TextPair, ErrorsNameTheSampleAndTheField) {
  const TextTokenizer tokens = tokenizer();
  const SourcePtr source = rows("{\"a\": \"hello\", \"b\": 3, \"label\": 1}\n{\"a\": \"x\", \"label\": 1}\n");
  const TextSource texts(source, {.field = "a", .pair_field = "b", .tokenizer = tokens});
  EXPECT_THAT(error_of([&] { texts.read(0); }), AllOf(HasSubstr("pairs.jsonl"), HasSubstr("has numbers in \"b\"")));
  EXPECT_THAT(error_of([&] { texts.read(1); }), HasSubstr("has no text \"b\""));
  const TextSource few(rows("{\"a\": \"hello\", \"b\": \"world\", \"label\": 1}\n"),
                       {.field = "a", .pair_field = "b", .tokenizer = tokens, .vocabulary = 4});
  EXPECT_THAT(error_of([&] { few.read(0); }), HasSubstr("expected tokens from 0 to 3"));
  EXPECT_THAT(error_of([&] { TextSource(source, {.field = "a", .pair_field = "b"}); }),
              HasSubstr("pairs of texts need a tokenizer"));
  EXPECT_THAT(error_of([&] { TextSource(source, {.field = "a", .pair_field = "b", .tokenizer = byte_tokenizer()}); }),
              HasSubstr("this tokenizer cannot join two texts: bytes"));
  EXPECT_THAT(
      error_of([&] { TextSource(source, {.field = "a", .pair_field = "b", .tokenizer = tokens, .max_tokens = 3}); }),
      HasSubstr("max_length must be larger than 3, the number of special tokens of two texts, got 3"));
}

}  // namespace
}  // namespace bellows::data::testing
