#include <ATen/Functions.h>

#include <limits>
#include <map>

#include "bellows/core/log.h"
#include "bellows/data/loader/batch_memory.h"
#include "bellows/system/file.h"
#include "tests/data/ragged_source.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kStories = 50;

std::string story(int64_t i) {
  std::string text;
  for (int64_t k = 0; k < i * 7 % 13; ++k) text += static_cast<char>('a' + (i + 5 * k) % 26);
  return text;
}

std::vector<int64_t> letters(std::string_view text) {
  return {text.begin(), text.end()};
}

/// The same tokens from a WebDataset's texts, a column of texts, and a column of numbers.
std::map<std::string, Dataset> stories(const TemporaryFolder& folder) {
  std::vector<Member> members;
  std::string lines, numbers;
  members.reserve(static_cast<size_t>(kStories));
  for (int64_t i = 0; i < kStories; ++i) {
    members.push_back({c10::str("s", i, ".txt"), story(i)});
    lines += c10::str("{\"story\": \"", story(i), "\"}\n");
    numbers += c10::str("{\"tokens\": ", c10::IntArrayRef(letters(story(i))), "}\n");
  }
  write_shard(folder / "x.tar", members);
  write_text_file(folder / "x.jsonl", lines);
  write_text_file(folder / "numbers.jsonl", numbers);
  return {{"tar", open(folder / "x.tar").tokenize(letters)},
          {"jsonl", open(folder / "x.jsonl").tokenize(letters, "story")},
          {"numbers", open(folder / "numbers.jsonl")}};
}

/// Compares "tokens" with the stories, padded by -1; returns how many places they take.
int64_t check_stories(const Batch& batch, int64_t multiple_of) {
  size_t longest = 0;
  for (const int64_t id : batch.ids()) longest = std::max(longest, story(id).size());
  const int64_t length = (static_cast<int64_t>(longest) + multiple_of - 1) / multiple_of * multiple_of;
  const at::Tensor &tokens = batch["tokens"], &lengths = batch["tokens_lengths"];
  EXPECT_EQ(tokens.sizes(), (std::vector<int64_t>{batch.size(), length}));
  EXPECT_EQ(lengths.sizes(), (std::vector<int64_t>{batch.size()}));
  at::Tensor expected = at::full({batch.size(), length}, -1, at::kLong);
  for (int64_t row = 0; row < batch.size(); ++row) {
    const std::vector<int64_t> own = letters(story(batch.ids()[static_cast<size_t>(row)]));
    for (size_t k = 0; k < own.size(); ++k) expected[row][static_cast<int64_t>(k)] = own[k];
    EXPECT_EQ(lengths[row].item<int64_t>(), static_cast<int64_t>(own.size()));
  }
  EXPECT_TRUE(at::equal(tokens, expected)) << tokens << expected;
  EXPECT_TRUE(at::equal(padding_mask(lengths, length), expected.ne(-1)));
  return tokens.numel();
}

TEST(Padding, OfBucketedTextsHoldsEachTokenOnceWhateverTheThreads) {
  const TemporaryFolder folder;
  std::vector<std::string> expected;
  for (const auto& [kind, set] : stories(folder)) {
    const std::vector<int64_t> lengths = read_lengths(*set.source(), "tokens");
    const OrderPtr order = bucketed(lengths, {.together = 4, .window = 52});
    for (const int64_t threads : {0, 1, 3}) {
      Loader loader = set.pad("tokens", -1).order(order, 2).batch(4).threads(threads).loader();
      const auto batches = fingerprints(loader, 1);
      if (expected.empty()) expected = batches;
      EXPECT_EQ(batches, expected) << kind << ", " << threads << " threads";
      std::vector<int64_t> times(kStories);
      int64_t places = 0, tokens = 0;
      for (const Batch& batch : loader.epoch(1)) {
        places += check_stories(batch, 1);
        tokens += batch["tokens_lengths"].sum().item<int64_t>();
        for (const int64_t id : batch.ids()) ++times[static_cast<size_t>(id)];
      }
      EXPECT_EQ(times, std::vector<int64_t>(kStories, 1));
      EXPECT_DOUBLE_EQ(1 - static_cast<double>(tokens) / static_cast<double>(places),
                       padding_share(order->positions(*set.source(), 2, 1), lengths, 4));
    }
  }
}

TEST(Padding, RoundsUp) {
  const TemporaryFolder folder;
  Loader loader = stories(folder).at("tar").pad("tokens").pad("tokens", -1, 8).shuffle(3).batch(3).threads(2).loader();
  for (const Batch& batch : loader.epoch(0)) check_stories(batch, 8);
}

TEST(Padding, TakesAnyTypeAndSizesBehindTheFirst) {
  const auto padded = [](const std::vector<at::Tensor>& arrays, const c10::Scalar& value) {
    return *Dataset(std::make_shared<RaggedSource>(arrays)).pad("x", value, 2).batch(3).loader().next();
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kByte, at::kShort, at::kBool}) {
    for (const std::vector<int64_t>& tail : {std::vector<int64_t>{}, {3}, {2, 1}, {0}}) {
      std::vector<at::Tensor> arrays;
      at::DimVector sizes{3, 6};
      sizes.append(tail.begin(), tail.end());
      at::Tensor expected = at::ones(sizes, dtype);
      for (const int64_t length : {2, 5, 0}) {
        sizes.assign({length});
        sizes.append(tail.begin(), tail.end());
        const at::Tensor& array = arrays.emplace_back(at::arange(c10::multiply_integers(sizes)).view(sizes).to(dtype));
        expected[static_cast<int64_t>(arrays.size()) - 1].narrow(0, 0, length).copy_(array);
      }
      const Batch batch = padded(arrays, 1);
      EXPECT_TRUE(at::equal(batch["x"], expected)) << dtype << batch["x"] << expected;
      EXPECT_TRUE(at::equal(batch["x_lengths"], at::tensor({2, 5, 0}, at::kLong)));
    }
  }
  const Batch half = padded({at::zeros({1}), at::zeros({0})}, -0.5);
  EXPECT_TRUE(at::equal(half["x"], at::tensor({0.0f, -0.5f, -0.5f, -0.5f}).view({2, 2})));
  const Batch none = padded({at::zeros({0}), at::zeros({0})}, 0);
  EXPECT_EQ(none["x"].sizes(), (std::vector<int64_t>{2, 0}));
}

TEST(Padding, OfABatchWithoutRowsIsEmpty) {
  const auto source = std::make_shared<RaggedSource>(std::vector<at::Tensor>(5, at::ones({4, 3})));
  for (int64_t rank = 0; rank < 4; ++rank) {
    Loader loader = Dataset(source).pad("x", 0, 8).batch(1).distributed(rank, 4).loader();
    EXPECT_EQ((*loader.next())["x"].sizes(), (std::vector<int64_t>{1, 8, 3}));
    const Batch last = *loader.next();
    if (last.size() > 0) continue;
    EXPECT_EQ(last["x"].sizes(), (std::vector<int64_t>{0, 0, 3}));
    EXPECT_EQ(last["x_lengths"].sizes(), (std::vector<int64_t>{0}));
  }
}

TEST(Padding, GoesOnWithoutBadSamples) {
  const TemporaryFolder folder;
  stories(folder);
  const auto before = set_log_sink(nullptr);
  const Dataset set = open(folder / "x.tar").tokenize([](std::string_view text) {
    TORCH_CHECK_VALUE(text.size() < 10, "too long");
    return letters(text);
  });
  std::vector<std::string> expected;
  for (const int64_t threads : {0, 1, 3}) {
    Loader loader = set.pad("tokens", -1).batch(10).threads(threads).on_bad_sample(OnBadSample::skip).loader();
    const auto batches = fingerprints(loader, 0);
    if (expected.empty()) expected = batches;
    EXPECT_EQ(batches, expected);
    int64_t good = 0;
    for (const Batch& batch : loader.epoch(0)) {
      check_stories(batch, 1);
      good += batch.size();
    }
    EXPECT_EQ(good + loader.skipped(), kStories);
    EXPECT_GT(loader.skipped(), 5);
  }
  Loader bad = set.pad("tokens").subset({1, 7}).batch(1).distributed(1, 2).on_bad_sample(OnBadSample::skip).loader();
  EXPECT_EQ((*bad.next())["tokens"].sizes(), (std::vector<int64_t>{0, 0})) << "of 10 letters";
  set_log_sink(before);
}

TEST(Padding, RefusesArraysThatDoNotFitByName) {
  const auto error_with = [](const at::Tensor& second, OnBadSample policy = OnBadSample::fail) {
    const auto source = std::make_shared<RaggedSource>(std::vector{at::ones({3, 4}), second, at::ones({1, 4})});
    Loader loader = Dataset(source).pad("x").batch(3).on_bad_sample(policy).loader();
    return loader.next()->ids();
  };
  const std::string before =
      ", but in the samples before it is Float [*, 4]. Padded arrays need the same type, and the same size in";
  EXPECT_THAT(error_of([&] { error_with(at::ones({2, 5})); }), HasSubstr("sample 1: \"x\" is Float [2, 5]" + before));
  EXPECT_THAT(error_of([&] { error_with(at::ones({2})); }), HasSubstr("sample 1: \"x\" is Float [2]" + before));
  EXPECT_THAT(error_of([&] { error_with(at::ones({})); }), HasSubstr("sample 1: \"x\" is Float []" + before));
  EXPECT_THAT(error_of([&] { error_with(at::ones({2, 4}, at::kLong)); }), HasSubstr("is Long [2, 4]" + before));
  const auto sink = set_log_sink(nullptr);
  EXPECT_THAT(error_with(at::ones({2, 5}), OnBadSample::skip), ElementsAre(0, 2));
  set_log_sink(sink);
  const auto ragged = std::make_shared<RaggedSource>(std::vector{at::ones({3}), at::ones({2})});
  EXPECT_THAT(error_of([&] { Dataset(ragged).loader().next(); }),
              HasSubstr("arrays of different lengths, use Dataset::pad"));
}

TEST(Padding, SaysWhatIsWrongWithIt) {
  const auto next = [](const at::Tensor& array, const auto& pad) {
    return error_of([&] { pad(Dataset(std::make_shared<RaggedSource>(std::vector{array}))).loader().next(); });
  };
  const at::Tensor tokens = at::ones({3}, at::kLong), bytes = tokens.to(at::kByte);
  const auto with = [](const c10::Scalar& value) { return [=](const Dataset& set) { return set.pad("x", value); }; };
  EXPECT_THAT(next(tokens, [](const Dataset& set) { return set.pad("y"); }),
              HasSubstr("pad: sample 0 has no array \"y\"; it contains x. Dataset::tokenize"));
  EXPECT_THAT(next(at::ones({}), with(0)),
              HasSubstr("sample 0 has a single value as \"x\"; expected an array [length"));
  EXPECT_THAT(next(tokens, with(0.5)), HasSubstr("pad: \"x\" is Long, which cannot represent 0.5"));
  EXPECT_THAT(next(bytes, with(256)), HasSubstr("\"x\" is Byte, which cannot represent 256"));
  EXPECT_THAT(next(bytes, with(-1)), HasSubstr("cannot represent -1"));
  EXPECT_THAT(next(tokens, with(std::numeric_limits<double>::quiet_NaN())), HasSubstr("cannot represent nan"));
  EXPECT_THAT(next(at::ones({3}), with(1e300)), HasSubstr("\"x\" is Float, which cannot represent 1e+300"));
  for (const int64_t multiple_of : {int64_t{0}, int64_t{-8}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(next(tokens, [&](const Dataset& set) { return set.pad("x", 0, multiple_of); }),
                HasSubstr(c10::str("multiple of 1 to 1048576, got ", multiple_of)));
  }
  const SourcePtr both = from_tensors({{"x", at::ones({2, 3})}, {"x_lengths", at::ones({2})}});
  EXPECT_THAT(error_of([&] { Dataset(both).pad("x").loader().next(); }), HasSubstr("has \"x_lengths\" already"));
  EXPECT_THAT(error_of([] { padding_mask(at::ones({2, 2}), 3); }), HasSubstr("expected lengths [N], got sizes [2, 2]"));
}

TEST(Padding, IsAmongWhatBatchesMustHave) {
  const Dataset set(std::make_shared<RaggedSource>(std::vector{at::ones({3}), at::ones({2})}));
  EXPECT_TRUE(set.pad("x").require({"x", "x_lengths"}).loader().next());
  EXPECT_THAT(error_of([&] { set.pad("x").require({"y"}).loader().next(); }), HasSubstr("has no \"y\"; it contains x"));
}

TEST(BatchMemory, KeepsTheSizesThatAreUsed) {
  const auto memory = std::make_shared<BatchMemory>(2);
  memory->take(8);
  for (int i = 0; i < 3; ++i) {
    const c10::DataPtr one = memory->take(16), other = memory->take(32);
  }
  EXPECT_EQ(memory->allocated(), 3) << "that of 8 made way";
}

}  // namespace
}  // namespace bellows::data::testing
