#include "bellows/data/order/packing.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "bellows/data/order/labels.h"
#include "tests/data/order/order_support.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Documents of numbers, each of its own length: an int32 array "text".
class Documents final : public Source {
 public:
  using Source::read;
  explicit Documents(std::vector<int64_t> lengths) : lengths_(std::move(lengths)) {
    RandomStream random(5);
    for (const int64_t length : lengths_) {
      for (auto& tokens = texts_.emplace_back(); static_cast<int64_t>(tokens.size()) < length;)
        tokens.push_back(static_cast<int32_t>(random.below(50)));
    }
  }
  int64_t size() const override { return static_cast<int64_t>(lengths_.size()); }
  void read(int64_t index, Sample& sample) const override {
    const auto i = static_cast<size_t>(index);
    sample.clear();
    sample.id = index;
    Field& field = sample.fields.emplace_back();
    field.name = "text";
    field.bytes = std::as_bytes(std::span(texts_[i]));
    field.is_array = true;
    field.dtype = c10::ScalarType::Int;
    field.sizes = c10::IntArrayRef(&lengths_[i], 1);
  }
  std::string describe() const override { return "documents"; }
  at::Tensor tokens(size_t i) const { return at::tensor(texts_[i]).to(at::kLong); }
  const std::vector<int64_t>& lengths() const { return lengths_; }

 private:
  std::vector<int64_t> lengths_;
  std::vector<std::vector<int32_t>> texts_;
};

/// A layer of causal attention with its loss, in double.
struct TinyModel {
  at::Tensor embedding = at::randn({50, 16}, at::kDouble), places = at::randn({64, 16}, at::kDouble),
             qkv = at::randn({48, 16}, at::kDouble), out = at::randn({50, 16}, at::kDouble);

  /// The sum of the losses at all targets that are not ignored, and how many there are.
  std::pair<double, int64_t> loss(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& mask,
                                  const at::Tensor& targets) const {
    const at::Tensor x = at::embedding(embedding, tokens) + at::embedding(places, positions);
    const auto parts = at::linear(x, qkv).unsqueeze(1).chunk(3, -1);
    const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], mask).squeeze(1);
    const at::Tensor scores = at::log_softmax(at::linear(seen, out).flatten(0, 1), -1);
    const at::Tensor sum = at::nll_loss(scores, targets.flatten(), {}, at::Reduction::Sum, -100);
    return {sum.item<double>(), targets.ne(-100).sum().item<int64_t>()};
  }
};

TEST(Packing, HasTheSameLossAsDocumentsOneByOne) {
  at::manual_seed(3);
  const TinyModel model;
  const auto documents = std::make_shared<Documents>(some_numbers(60, 48));
  const Packing packing = pack_rows(documents->lengths(), {.row_length = 48, .window = 30});
  Loader loader = Dataset(packed(documents, "text", packing)).shuffle(1).batch(5).threads(2).loader();
  double loss = 0, wrong = 0;
  int64_t targets = 0;
  for (const Batch& batch : loader.epoch(0)) {
    const at::Tensor &tokens = batch["tokens"], &segments = batch["segment_ids"], &places = batch["position_ids"];
    const auto [sum, count] = model.loss(tokens, places, attention_mask(segments), next_tokens(tokens, segments));
    loss += sum;
    targets += count;
    wrong += model.loss(tokens, places, at::ones({48, 48}, at::kBool).tril(), next_tokens(tokens, segments)).first;
  }
  double expected = 0;
  int64_t expected_targets = 0;
  for (size_t i = 0; i < documents->lengths().size(); ++i) {
    const int64_t length = documents->lengths()[i];
    if (length < 2) continue;
    const at::Tensor tokens = documents->tokens(i).unsqueeze(0);
    const at::Tensor targets_1T = at::cat({tokens.slice(1, 1), at::full({1, 1}, -100)}, 1);
    const auto [sum, count] =
        model.loss(tokens, at::arange(length).unsqueeze(0), at::ones({length, length}, at::kBool).tril(), targets_1T);
    expected += sum;
    expected_targets += count;
  }
  EXPECT_EQ(targets, expected_targets);
  EXPECT_NEAR(loss, expected, 1e-9 * expected);
  EXPECT_GT(std::abs(wrong - expected), 1e-3 * expected);  // the mask is what makes it right
}

TEST(Packing, FillsRowsAsFirstFitDecreasingDoes) {
  const Packing packing = pack_rows({3, 6, 2, 7, 4, 0, 23}, {.row_length = 10, .window = 100, .shuffle = false});
  std::vector<std::vector<std::pair<int64_t, int64_t>>> rows;
  for (int64_t row = 0; row < packing.rows(); ++row) {
    auto& pieces = rows.emplace_back();
    for (auto i = packing.row_starts[static_cast<size_t>(row)]; i < packing.row_starts[static_cast<size_t>(row) + 1];
         ++i)
      pieces.emplace_back(packing.pieces[static_cast<size_t>(i)].document,
                          packing.pieces[static_cast<size_t>(i)].length);
  }
  using Row = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_THAT(rows,
              ElementsAre(Row{{6, 10}}, Row{{6, 10}}, Row{{3, 7}, {0, 3}}, Row{{1, 6}, {4, 4}}, Row{{6, 3}, {2, 2}}));
  EXPECT_DOUBLE_EQ(packing.padding_share(), 0.1);
}

TEST(Packing, LeavesLittleEmpty) {
  std::vector<int64_t> lengths = some_numbers(20000, 900);
  for (size_t i = 0; i < lengths.size(); i += 50) lengths[i] *= 7;
  const Packing packing = pack_rows(lengths, {.row_length = 1024});
  EXPECT_LT(packing.padding_share(), 0.02);
  EXPECT_EQ(pack_rows({}, {}).rows(), 0);
  EXPECT_EQ(pack_rows({0, 0}, {}).rows(), 0);
}

TEST(Packing, SaysWhereSegmentsAre) {
  const auto documents = std::make_shared<Documents>(std::vector<int64_t>{3, 2, 4});
  const Packing packing = pack_rows(documents->lengths(), {.row_length = 6, .shuffle = false});
  Loader loader = Dataset(packed(documents, "text", packing)).batch(2).loader();
  const Batch batch = *loader.next();
  const at::Tensor &segments = batch["segment_ids"], &tokens = batch["tokens"];
  EXPECT_TRUE(at::equal(segments, at::tensor({1, 1, 1, 1, 2, 2, 1, 1, 1, 0, 0, 0}, at::kLong).view({2, 6})));
  EXPECT_TRUE(
      at::equal(batch["position_ids"], at::tensor({0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 0, 0}, at::kLong).view({2, 6})));
  EXPECT_TRUE(at::equal(tokens[0], at::cat({documents->tokens(2), documents->tokens(1)})));
  EXPECT_TRUE(at::equal(tokens[1], at::cat({documents->tokens(0), at::zeros({3}, at::kLong)})));
  EXPECT_TRUE(at::equal(cumulative_lengths(segments), at::tensor({0, 4, 6, 9, 12}, at::kInt)));
  const at::Tensor next = next_tokens(tokens, segments);
  for (const int64_t end : {3, 5, 8, 9, 10, 11}) EXPECT_EQ(next.flatten()[end].item<int64_t>(), -100) << end;
  EXPECT_EQ(next.ne(-100).sum().item<int64_t>(), 6);
  EXPECT_EQ(next[0][4].item<int64_t>(), tokens[0][5].item<int64_t>());
  const at::Tensor mask = attention_mask(segments), both = attention_mask(segments, false);
  EXPECT_EQ(mask.sizes(), c10::IntArrayRef({2, 1, 6, 6}));
  EXPECT_TRUE(mask.any(-1).all().item<bool>());  // no softmax over nothing
  EXPECT_TRUE(mask[0][0][3][0].item<bool>() && !mask[0][0][0][3].item<bool>() && both[0][0][0][3].item<bool>());
  EXPECT_FALSE(mask[0][0][4][3].item<bool>() || both[0][0][3][4].item<bool>());
}

TEST(Packing, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of([] { pack_rows({1}, {.row_length = 0}); }), HasSubstr("got 0 and 4096"));
  EXPECT_THAT(error_of([] { pack_rows({1, -1}, {.shuffle = false}); }), HasSubstr("document 1 has length -1"));
  const auto documents = std::make_shared<Documents>(std::vector<int64_t>{3, 2});
  EXPECT_THAT(error_of([&] { packed(documents, "text", pack_rows({1, 1, 1}, {})); }), HasSubstr("documents"));
  EXPECT_THAT(error_of([&] { packed(documents, "text", {}); }), HasSubstr("made by pack_rows"));
  EXPECT_THAT(error_of([&] {
                packed(documents, "txt", pack_rows({3, 2}, {}))->read(0);
              }),
              HasSubstr("has no field \"txt\""));
  EXPECT_THAT(error_of([&] {
                packed(documents, "text", pack_rows({4, 2}, {}))->read(0);
              }),
              HasSubstr("has 3 tokens, but the packing expects at least 4"));
  const SourcePtr floats = from_tensors({{"text", at::ones({2, 3})}});
  EXPECT_THAT(error_of([&] { packed(floats, "text", pack_rows({3, 3}, {}))->read(0); }), HasSubstr("found type Float"));
  const SourcePtr tables = from_tensors({{"text", at::ones({2, 3, 2}, at::kLong)}});
  EXPECT_THAT(error_of([&] { packed(tables, "text", pack_rows({3, 3}, {}))->read(0); }), HasSubstr("sizes [3, 2]"));
  for (const Packing& wrong : {Packing{{{0, 0, 5}}, {0, 1}, 4}, Packing{{{0, 0, 2}, {1, 0, 2}}, {0, 2}, 3},
                               Packing{{{0, -1, 2}}, {0, 1}, 4}, Packing{{{0, 0, 2}}, {0, 2}, 4}})
    EXPECT_THAT(error_of([&] { packed(documents, "text", wrong); }), HasSubstr("do not fit into rows of"));
  EXPECT_THAT(error_of([] { next_tokens(at::ones({2, 3}), at::ones({3, 2})); }), HasSubstr("got [2, 3]"));
  EXPECT_THAT(error_of([] { attention_mask(at::ones({3})); }), HasSubstr("[N, T]"));
}

TEST(Labels, AreReadFromFilesAndArrays) {
  const SourcePtr digits = open(kDigits, {.split = "test"}).source();
  const auto labels = read_labels(*digits);
  Loader loader = open(kDigits, {.split = "test"}).batch(1000).loader();
  const Batch batch = *loader.next();
  EXPECT_EQ(labels, std::vector<int64_t>(batch["label"].const_data_ptr<int64_t>(),
                                         batch["label"].const_data_ptr<int64_t>() + batch.size()));
  EXPECT_THAT(read_labels(*from_tensors({{"label", at::tensor({4, -1}, at::kInt)}})), ElementsAre(4, -1));
  EXPECT_THAT(read_lengths(*from_tensors({{"x", at::zeros({2, 5, 3})}}), "x"), ElementsAre(5, 5));
  EXPECT_EQ(read_lengths(*digits, "png")[0], static_cast<int64_t>(a_png().size()));
  EXPECT_THAT(error_of([&] {
                read_labels(*from_tensors({{"label", at::zeros({2})}}));
              }),
              HasSubstr("sample 0: expected one integer as a label, got an array of type Float"));
  EXPECT_THAT(error_of([&] { read_labels(*from_tensors({{"x", at::zeros({2})}})); }), HasSubstr("has no label"));
  EXPECT_THAT(error_of([&] { read_lengths(*digits, "txt"); }), HasSubstr("has no field \"txt\""));
  EXPECT_THAT(error_of([&] {
                read_lengths(*from_tensors({{"x", at::zeros({2})}}), "x");
              }),
              HasSubstr("has a single value as \"x\""));
}

}  // namespace
}  // namespace bellows::data::testing
