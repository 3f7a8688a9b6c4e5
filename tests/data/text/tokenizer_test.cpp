#include "bellows/data/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "bellows/data/classes.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/text/text_source.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string golden_text(const std::string& name) {
  return read_text_file(std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/data/" + name);
}

std::vector<int64_t> tokens_of(const Sample& sample) {
  const Field* field = sample.find("tokens");
  std::vector<int64_t> tokens(static_cast<size_t>(field->sizes[0]));
  std::memcpy(tokens.data(), field->bytes.data(), field->bytes.size());
  return tokens;
}

std::vector<int64_t> integers_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
}

TEST(Tokenizer, WordPiecesAreThoseOfTransformers) {
  const TemporaryFolder folder;
  const auto golden = nlohmann::json::parse(golden_text("wordpiece.json"));
  ASSERT_EQ(golden["cases"].size(), 2u);
  for (const auto& one : golden["cases"]) {
    std::string lines;
    for (const auto& word : one["vocabulary"]) lines += word.get<std::string>() + "\n";
    write_text_file(folder / "vocab.txt", lines);
    const TextTokenizer tokenizer = open_tokenizer(folder / "vocab.txt");
    EXPECT_EQ(tokenizer.vocabulary, static_cast<int64_t>(one["vocabulary"].size()));
    EXPECT_THAT(tokenizer.description, HasSubstr(one["cased"].get<bool>() ? "cased" : "lowercase"));
    EXPECT_GE(one["texts"].size(), 17u);
    for (const auto& row : one["texts"])
      EXPECT_EQ(tokenizer.encode(row[0].get<std::string>()), row[1].get<std::vector<int64_t>>()) << row[0];
    write_shard(folder / "long.tar", {{"a.txt", one["cut_to_6"][0].get<std::string>()}});
    const TextSource cut(open(folder / "long.tar").source(), {.tokenizer = tokenizer, .max_tokens = 6});
    EXPECT_EQ(tokens_of(cut.read(0)), one["cut_to_6"][1].get<std::vector<int64_t>>());
  }
}

TEST(Tokenizer, BytesAreByT5s) {
  const TextTokenizer bytes = open_tokenizer("bytes");
  EXPECT_THAT(bytes.encode("Az\xc3\xa9\xff"), ElementsAre(2, 68, 125, 198, 172, 258, 1));
  EXPECT_EQ(bytes.vocabulary, 259);
}

TEST(Tokenizer, SaysWhatIsWrongWithAVocabulary) {
  const TemporaryFolder folder;
  const auto error_with = [&](const std::string& lines) {
    write_text_file(folder / "vocab.txt", lines);
    return error_of([&] { open_tokenizer(folder / "vocab.txt"); });
  };
  EXPECT_THAT(error_with("[PAD]\n[UNK]\n[CLS]\nword\n"), HasSubstr("has no [SEP] among its 4 lines"));
  EXPECT_THAT(error_with("[UNK]\n[PAD]\n[CLS]\n[SEP]\n"), HasSubstr("expected [PAD] in the first line"));
  EXPECT_THAT(error_with("[PAD]\n[UNK]\nword\nword\n"), HasSubstr("line 4: the token \"word\" occurs twice"));
  EXPECT_THAT(error_of([] { open_tokenizer("/nowhere/tokenizer.json"); }), HasSubstr("/nowhere/tokenizer.json"));
  EXPECT_THAT(error_of([] { open_tokenizer("/nowhere/vocab.txt"); }), HasSubstr("/nowhere/vocab.txt"));
}

TEST(TextSource, GivesTokensAndLabelsOfAnyFormat) {
  const TemporaryFolder folder;
  write_shard(folder / "x.tar", {{"a.txt", "abc"}, {"a.cls", "1"}, {"b.txt", "d"}, {"b.cls", "0"}});
  write_text_file(folder / "x.jsonl",
                  "{\"id\": 1, \"story\": \"abc\", \"label\": \"yes\"}\n"
                  "{\"id\": 2, \"story\": \"d\", \"label\": \"no\"}\n");
  write_text_file(folder / "x.csv", "text,label\nabc,1\nd,0\n");
  write_text_file(folder / "ids.jsonl",
                  "{\"input_ids\": [2, 100, 101, 102, 1], \"label\": 1}\n"
                  "{\"input_ids\": [2, 103, 1], \"label\": 0}\n");
  for (const char* name : {"x.tar", "x.jsonl", "x.csv", "ids.jsonl"}) {
    const Dataset stored = open(folder / name);
    const std::vector<std::string> classes = class_names(*stored.source());
    const bool named = has_named_labels(*stored.source());
    EXPECT_EQ(named, name == std::string("x.jsonl"));
    EXPECT_THAT(classes, name == std::string("x.jsonl") ? ElementsAre("no", "yes") : ElementsAre("0", "1")) << name;
    TextOptions options{.vocabulary = 259};
    if (name != std::string("ids.jsonl")) options.tokenizer = byte_tokenizer();
    const SourcePtr labelled = named ? number_labels(stored.source(), classes) : stored.source();
    const auto texts = std::make_shared<TextSource>(labelled, options);
    EXPECT_THAT(texts->lengths(), ElementsAre(5, 3)) << name;
    Loader loader = Dataset(texts).require({"tokens", "label"}).pad("tokens").num_classes(2).batch(2).loader();
    const auto batch = loader.next();
    EXPECT_THAT(integers_of((*batch)["tokens"]), ElementsAre(2, 100, 101, 102, 1, 2, 103, 1, 0, 0)) << name;
    EXPECT_THAT(integers_of((*batch)["label"]), ElementsAre(1, 0)) << name;
    EXPECT_EQ(data::fingerprint(Dataset(texts)), data::fingerprint(Dataset(stored.source())))
        << "that of what is stored";
    EXPECT_EQ(texts->counts().texts, 2);
    EXPECT_EQ(texts->counts().cut, 0);
  }
}

TEST(TextSource, RefusesWhatIsNoText) {
  const TemporaryFolder folder;
  write_text_file(folder / "x.jsonl",
                  "{\"text\": \"good\", \"label\": \"yes\"}\n{\"text\": \" \\n\", \"label\": \"no\"}\n"
                  "{\"text\": \"good\", \"label\": \"yess\"}\n{\"other\": \"good\", \"label\": \"no\"}\n");
  write_text_file(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\n");
  write_shard(folder / "x.tar", {{"a.txt", "a\xff"}});
  write_shard(folder / "picture.tar", {{"a.png", "\x89PNG"}, {"a.cls", "1"}});
  const TextTokenizer words = open_tokenizer(folder / "vocab.txt");
  const auto stored = [&](const char* name) { return open(folder / name).source(); };
  const TextSource source(number_labels(stored("x.jsonl"), {"no", "yes"}), {.tokenizer = words});
  const auto error = [](const Source& from, int64_t i) { return error_of([&] { from.read(i); }); };
  EXPECT_THAT(tokens_of(source.read(0)), ElementsAre(2, 4, 3));
  EXPECT_THAT(error(source, 1), HasSubstr("text: sample 1, "));
  EXPECT_THAT(error(source, 1), HasSubstr("the text is empty, or it contains no tokens"));
  EXPECT_THAT(error(source, 2), HasSubstr("Did you mean \"yes\"? The dataset has 2 classes: \"no\", \"yes\"."));
  EXPECT_THAT(error(source, 3), HasSubstr("has no text \"text\""));
  EXPECT_THAT(source.lengths(), ElementsAre(3, 0, 0, 0)) << "bad ones are for the loader to say";
  EXPECT_THAT(error(TextSource(stored("x.tar"), {.tokenizer = words}), 0),
              HasSubstr("expected UTF-8, found an invalid byte at 1 of 2"));
  EXPECT_THAT(error_of([&] { TextSource(stored("picture.tar"), {.tokenizer = byte_tokenizer()}); }),
              HasSubstr("has no texts; it contains png, cls"));
  const TextSource misspelt(number_labels(stored("x.jsonl"), {"yess"}), {.tokenizer = words});
  const Sample third = misspelt.read(2);
  EXPECT_THAT(third.where(third.find("label")), HasSubstr("sample 2, label at byte 64 of"));
  EXPECT_THAT(error_of([&] { TextSource(stored("x.jsonl"), {}); }),
              HasSubstr("a text needs a tokenizer. Set tokenizer to bytes"));
  EXPECT_THAT(error_of([&] { TextSource(stored("x.jsonl"), {.tokenizer = words, .max_tokens = 2}); }),
              HasSubstr("number of special tokens of WordPiece, 5 words, lowercase"));
  write_text_file(folder / "two.jsonl", "{\"title\": \"a\", \"body\": \"b\", \"label\": 1}\n");
  EXPECT_THAT(error_of([&] { TextSource(stored("two.jsonl"), {.tokenizer = words}); }),
              HasSubstr("it contains title, body, label. Set text_field to the field with the text."));
  write_text_file(folder / "ids.jsonl", "{\"tokens\": [1, 2, 7], \"label\": 1}\n{\"tokens\": [], \"label\": 1}\n");
  const TextSource ids(stored("ids.jsonl"), {.max_tokens = 2, .vocabulary = 7});
  EXPECT_THAT(tokens_of(ids.read(0)), ElementsAre(1, 2)) << "cut";
  EXPECT_THAT(error(TextSource(stored("ids.jsonl"), {.vocabulary = 7}), 0),
              HasSubstr("expected tokens from 0 to 6, got 7"));
  EXPECT_EQ(ids.counts().cut, 1);
}

}  // namespace
}  // namespace bellows::data::testing
