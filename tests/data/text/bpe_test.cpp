#include <nlohmann/json.hpp>

#include "bellows/data/text/bpe.h"
#include "bellows/data/text/tokenizer.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// What the package tokenizers wrote, and what it makes of texts.
const Json& bpe_golden() {
  static const Json golden = Json::parse(read_text_file(kGoldens + "bpe.json"));
  return golden;
}

TextTokenizer tokenizer_of_text(const std::string& text) {
  const TemporaryFolder folder;
  write_text_file(folder / "tokenizer.json", text);
  return open_tokenizer(folder / "tokenizer.json");
}

TEST(BytePairTokenizer, TokensAreThoseOfTokenizers) {
  ASSERT_EQ(bpe_golden()["cases"].size(), 3u);
  for (const Json& one : bpe_golden()["cases"]) {
    const TextTokenizer tokenizer = tokenizer_of_text(one["file"]);
    EXPECT_GE(one["texts"].size(), 25u);
    for (const Json& row : one["texts"])
      EXPECT_EQ(tokenizer.pieces(row[0].get<std::string>()), row[1].get<std::vector<int64_t>>()) << row[0];
    EXPECT_EQ(tokenizer.vocabulary,
              static_cast<int64_t>(Json::parse(one["file"].get<std::string>())["model"]["vocab"].size()));
    std::vector<int64_t> marked = tokenizer.encode(one["marked"][0].get<std::string>());
    if (tokenizer.before.empty()) {
      EXPECT_THAT(tokenizer.after, ElementsAre(0)) << "<|endoftext|>, which GPT-2 was trained with between texts";
      marked.pop_back();
    }
    EXPECT_EQ(marked, one["marked"][1].get<std::vector<int64_t>>());
    EXPECT_TRUE(tokenizer.pads) << "token 0 is a mark";
    EXPECT_THAT(tokenizer.description, HasSubstr(c10::str("byte-level BPE, ", tokenizer.vocabulary, " tokens (")));
  }
}

/// Texts come from anywhere, and end where they end. (tokenizers would take it for the mark.)
TEST(BytePairTokenizer, MarksWithinTextsStayText) {
  const TextTokenizer tokenizer = tokenizer_of_text(bpe_golden()["cases"][0]["file"]);
  ASSERT_THAT(tokenizer.after, ElementsAre(0));
  EXPECT_THAT(tokenizer.pieces("the<|endoftext|>the"), ::testing::Not(::testing::Contains(0)));
}

TEST(BytePairTokenizer, PiecesAreThoseOfThePattern) {
  const auto pieces = [](std::string_view text) {
    std::vector<std::string> result;
    for (size_t at = 0; at < text.size();) {
      const size_t end = end_of_piece(text, at);
      result.emplace_back(text.substr(at, end - at));
      at = end;
    }
    return result;
  };
  EXPECT_THAT(pieces("it's  2 x'll"), ElementsAre("it", "'s", " ", " 2", " x", "'ll"));
  EXPECT_THAT(pieces("a\n\n b \n"), ElementsAre("a", "\n\n", " b", " \n"));
  EXPECT_THAT(pieces("\n\nb''s '"), ElementsAre("\n", "\n", "b", "''", "s", " '"));
  EXPECT_THAT(pieces("né½?!٣"), ElementsAre("né", "½", "?!", "٣"));
}

TEST(BytePairTokenizer, LongRunsTakeNoSquareOfTime) {
  const TextTokenizer tokenizer = tokenizer_of_text(bpe_golden()["cases"][0]["file"]);
  std::string text(2'000'000, 'a');
  for (size_t i = 1; i < text.size(); i += 2) text[i] = 'b';
  EXPECT_LT(tokenizer.pieces(text).size(), text.size() / 2) << "one word, of merges over merges";
}

/// The golden's first file with something else in it.
std::string error_with_change(const std::function<void(Json&)>& change) {
  Json file = Json::parse(bpe_golden()["cases"][0]["file"].get<std::string>());
  change(file);
  return error_of([&] { tokenizer_of_text(file.dump()); });
}

TEST(BytePairTokenizer, SaysWhatIsWrongWithAFile) {
  const auto error = [](const std::string& text) { return error_of([&] { tokenizer_of_text(text); }); };
  EXPECT_THAT(error("{\"model\":"), AllOf(HasSubstr("tokenizer.json"), HasSubstr("expected a JSON object")));
  EXPECT_THAT(error("[1]"), HasSubstr("expected a JSON object, Hugging Face's tokenizer.json, found \"[1]\""));
  EXPECT_THAT(error("{}"), HasSubstr("expected a model of type BPE with merges"));
  EXPECT_THAT(error(std::string(100, '[')), HasSubstr("tokenizer.json"));
  EXPECT_THAT(error_with_change([](Json& f) { f["model"]["type"] = "Unigram"; }),
              AllOf(HasSubstr("expected a model of type BPE with merges, found type"), HasSubstr("Unigram")));
  EXPECT_THAT(error_with_change([](Json& f) { f["model"]["dropout"] = 0.1; }),
              HasSubstr("without dropout, found \"0.1\""));
  EXPECT_THAT(error_with_change([](Json& f) { f["normalizer"] = {{"type", "NFC"}}; }), HasSubstr("no normalizer"));
  EXPECT_THAT(error_with_change([](Json& f) { f["pre_tokenizer"]["use_regex"] = false; }),
              HasSubstr("expected a pre_tokenizer of type ByteLevel with GPT-2's pattern"));
  EXPECT_THAT(error_with_change([](Json& f) { f["pre_tokenizer"]["type"] = "Whitespace"; }), HasSubstr("ByteLevel"));
  EXPECT_THAT(error_with_change([](Json& f) { f["model"]["vocab"].erase("A"); }),
              HasSubstr("has no token for the byte 65 (\"A\")"));
  EXPECT_THAT(error_with_change([](Json& f) { f["model"]["vocab"]["A"] = -1; }),
              HasSubstr("expected an integer of at least 0 for \"A\", found \"-1\""));
  EXPECT_THAT(error_with_change([](Json& f) {
                f["model"]["merges"][3] = {"zzz", "a"};
              }),
              HasSubstr("merge 3 uses \"zzz\", which is not a token"));
  EXPECT_THAT(error_with_change([](Json& f) { f["model"]["merges"][2] = 7; }),
              HasSubstr("two tokens in merge 2, found"));
  EXPECT_THAT(error_with_change([](Json& f) { f["added_tokens"][0]["special"] = false; }),
              HasSubstr("expected only special added tokens"));
  EXPECT_THAT(error_with_change([](Json& f) {
                f["post_processor"] = {{"type", "BertProcessing"}};
              }),
              HasSubstr("expected a post_processor of type ByteLevel or TemplateProcessing"));
  const TextTokenizer good = tokenizer_of_text(bpe_golden()["cases"][0]["file"]);
  EXPECT_THAT(error_of([&] { good.pieces("a\xff"); }), HasSubstr("expected UTF-8, found an invalid byte at 1 of 2"));
}

// Files may come from anywhere: cut off, or with some byte changed, they are read or refused.
TEST(BytePairTokenizer, DamagedFilesAreReadOrRefused) {
  const std::string whole = bpe_golden()["cases"][1]["file"];
  for (size_t cut = 1; cut < whole.size(); cut += 997)
    EXPECT_NE(error_of([&] { tokenizer_of_text(whole.substr(0, cut)); }).find("tokenizer"), std::string::npos);
  for (size_t at = 0; at < whole.size(); at += 211) {
    std::string changed = whole;
    changed[at] = '7';
    try {
      tokenizer_of_text(changed).pieces("some text");
    } catch (const c10::ValueError&) {
    }
  }
}

}  // namespace
}  // namespace bellows::data::testing
