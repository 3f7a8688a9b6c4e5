// Text models from a recipe alone: tokens, padding, classes, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "bellows/data/order/packing.h"
#include "bellows/data/text/text_source.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/ladder/job.h"
#include "bellows/models/config.h"
#include "bellows/plan/plan.h"
#include "bellows/system/file.h"
#include "bellows/techniques/technique.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/data/selection.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* text_words[] = {"red", "blue", "stone", "river", "cloud", "seven", "paper", "green"};

/// A text of 3 to 30 words; its class is whether it has "yes" or "no" somewhere in it.
std::string text_line(int64_t i) {
  const bool yes = i * 7 % 5 < 2;
  std::string text;
  const int64_t count = 3 + i * 11 % 28;
  for (int64_t w = 0; w < count; ++w) {
    text += w == i * 3 % count ? (yes ? "yes" : "no") : text_words[(i * 5 + w * w) % 8];
    text += w + 1 < count ? " " : "";
  }
  return c10::str("{\"text\": \"", text, "\", \"label\": \"", yes ? "agrees" : "denies", "\"}\n");
}

/// 240 texts to train on and 60 others, a vocabulary, and a small BERT.
class TextRun : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "set");
    std::string train, test, vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nyes\nno\n";
    for (int64_t i = 0; i < 240; ++i) train += text_line(i);
    for (int64_t i = 240; i < 300; ++i) test += text_line(i);
    for (const char* word : text_words) vocabulary += c10::str(word, "\n");
    write_text_file(folder_ / "set/train.jsonl", train);
    write_text_file(folder_ / "set/test.jsonl", test);
    write_text_file(folder_ / "vocab.txt", vocabulary);
    write_text_file(folder_ / "config.json",
                    R"({"model_type": "bert", "vocab_size": 14, "hidden_size": 16, "num_hidden_layers": 1,
                        "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40,
                        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})");
  }

  Recipe recipe() const {
    Recipe result;
    result.model = folder_ / "config.json";
    result.data = folder_ / "set";
    result.tokenizer = folder_ / "vocab.txt";
    result.optimizer = "adamw";
    result.lr = 1e-2;
    result.batch_size = 24;
    result.epochs = 10;
    result.num_workers = 0;
    return result;
  }
  std::string error_with(const std::string& change) const {
    return error_of([&] {
      Recipe changed = recipe();
      changed.set(change);
      Trainer(changed).fit();
    });
  }

  TemporaryFolder folder_;
};

std::vector<int64_t> longs(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
}

}  // namespace

TEST_F(TextRun, LearnsFromTextsOfUnequalLengthAndNamedLabels) {
  const CapturedLog log;
  const FitResult result = Trainer(recipe()).fit();
  ASSERT_TRUE(result.evaluation);
  EXPECT_EQ(result.evaluation->samples, 60);
  EXPECT_GT(result.evaluation->accuracy, 0.95);
  EXPECT_GT(result.history.back().train_accuracy, 0.9);
  Recipe bytes = recipe();
  bytes.model = "bert-20m";
  bytes.tokenizer = "bytes";
  const Model wide = make_model(resolve(bytes));
  EXPECT_EQ(wide.state_dict()[0].second.size(0), 259) << "words of the tokenizer";
  EXPECT_EQ(wide.state_dict().back().second.size(0), 2) << "classes of the data";
}

TEST_F(TextRun, RowsFitTheRanksThatDivideThem) {
  Recipe divided = recipe();
  divided.mesh = "context: 2";
  data::Loader loader = make_job(divided).train.sequential().loader();
  bool padded = false;
  while (const auto batch = loader.next()) {
    const int64_t length = (*batch)["tokens"].size(1);
    EXPECT_EQ(length % 4, 0) << "two chunks per rank";
    padded = padded || length != (*batch)["tokens_lengths"].max().item<int64_t>();
  }
  EXPECT_TRUE(padded) << "the longest text of some batch has another length";
  divided.max_length = 30;
  EXPECT_THAT(error_of([&] { make_job(divided); }), HasSubstr("max_length must be a multiple of 4 with mesh = "));
}

// Off means off: the loss of a batch is what one writes by hand over the same texts, one by one and in any company.
TEST_F(TextRun, BatchesAreThePaddedTexts) {
  Recipe plain = recipe();
  plain.batch_size = 3;
  const Job job = make_job(plain);
  data::Loader loader = job.train.sequential().loader();
  const auto batch = loader.next();
  const data::TextTokenizer tokenizer = data::open_tokenizer(plain.tokenizer);
  const at::Tensor& tokens = (*batch)["tokens"];
  EXPECT_THAT(longs((*batch)["label"]), ElementsAre(0, 1, 1)) << "agrees, denies: in alphabetical order";
  job.model.eval();
  std::vector<at::Tensor> alone;
  for (int64_t i = 0; i < 3; ++i) {
    const std::string line = text_line(i);
    const std::vector<int64_t> expected = tokenizer.encode(line.substr(10, line.find("\", ") - 10));
    const int64_t length = (*batch)["tokens_lengths"][i].item<int64_t>();
    EXPECT_EQ(longs(tokens[i].slice(0, 0, length)), expected);
    EXPECT_EQ(tokens[i].slice(0, length).count_nonzero().item<int64_t>(), 0);
    alone.push_back(job.model.forward(torch::tensor(expected).unsqueeze(0)));
  }
  const StepOutput output = job.loss(*batch);
  EXPECT_TRUE(torch::allclose(output.predictions, torch::cat(alone), 1e-5, 1e-6)) << "sums in another order";
  const at::Tensor by_hand = torch::nn::functional::cross_entropy(job.model.forward(tokens), (*batch)["label"]);
  EXPECT_TRUE(torch::equal(output.loss, by_hand));
}

TEST_F(TextRun, CutsLongTextsAndSaysSoOnce) {
  Recipe cut = recipe();
  cut.max_length = 12;
  cut.epochs = 2;
  int64_t longer = 0;
  for (int64_t i = 0; i < 240; ++i) longer += 3 + i * 11 % 28 > 10;
  const CapturedLog log;
  const FitResult result = Trainer(cut).fit();
  EXPECT_EQ(result.steps, 20);
  const std::string note = c10::str(longer, " of 240 texts were truncated to 12 tokens.");
  const std::string text = log.text();
  EXPECT_THAT(text, HasSubstr(note));
  EXPECT_THAT(text.substr(text.find(note) + note.size()), Not(HasSubstr("were truncated")));
}

TEST_F(TextRun, BucketsHoldEachTextOnceWithLessPadding) {
  Recipe on = recipe();
  const auto look = [](const Recipe& looked_at) {
    data::Loader loader = open_train_data(looked_at).loader();
    std::vector<int64_t> ids;
    int64_t empty = 0;
    for (const data::Batch& batch : loader.epoch(1)) {
      ids.insert(ids.end(), batch.ids().begin(), batch.ids().end());
      empty += batch["tokens"].eq(0).sum().item<int64_t>();
    }
    std::sort(ids.begin(), ids.end());
    return std::pair(ids, empty);
  };
  const auto [plain_ids, plain_empty] = look(on);
  on.length_buckets = true;
  const auto [ids, empty] = look(on);
  EXPECT_EQ(ids, plain_ids);
  EXPECT_EQ(ids.size(), 240u);
  EXPECT_LT(empty, plain_empty / 4);
}

// What the ladder measures are a few batches; their peak has to be that of an epoch.
TEST_F(TextRun, IsMeasuredWithItsLongestTextFirst) {
  Recipe small = recipe();
  small.batch_size = 4;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto job = make_ladder_job(small, seed);
    EXPECT_EQ(job->run_steps(60), 240) << "an epoch: each text once";
    job->take_peak_bytes();
    job->run_steps(1);
    const auto first = static_cast<double>(job->take_peak_bytes());
    job->run_steps(59);
    EXPECT_GT(first, 0.95 * static_cast<double>(job->take_peak_bytes())) << seed << ": batches wait, too, about 1 %";
  }
}

TEST_F(TextRun, ResumesWithTheSameBits) {
  Recipe run = recipe();
  run.epochs = 2;
  run.length_buckets = true;
  run.save_steps = 7;
  const auto weights = [&](const std::string& name, int64_t stop_at) {
    run.run_folder = folder_ / name;
    Callbacks callbacks;
    Trainer* running = nullptr;
    std::vector<at::Tensor> last;
    callbacks.on_step = [&](const TrainLoop& loop) {
      if (loop.step_count() == stop_at) running->request_stop();
      last = copies_of(loop.job().model);
    };
    Trainer first(run, callbacks);
    running = &first;
    first.fit();
    if (stop_at > 0) {
      Trainer second(run, callbacks);
      running = &second;
      stop_at = 0;
      second.resume();
      second.fit();
    }
    return last;
  };
  const CapturedLog log;
  expect_same_bits(weights("whole", 0), weights("broken", 13));
}

TEST_F(TextRun, MismatchesAreSaidBeforeTheFirstStep) {
  EXPECT_THAT(error_with("tokenizer="),
              HasSubstr("a text needs a tokenizer. Set tokenizer to bytes, or to a vocab.txt"));
  EXPECT_THAT(error_with("tokenizer=bytes"),
              HasSubstr("expected a vocabulary of at most vocab_size = 14 tokens, got 259"));
  EXPECT_THAT(error_with("max_length=41"),
              AllOf(HasSubstr("max_length = 41"), HasSubstr("expected 1 to 40 tokens per sample")));
  EXPECT_THAT(error_with("max_length=2"), HasSubstr("max_length must be larger than the number of special tokens"));
  EXPECT_THAT(error_with("text_field=story"), HasSubstr("has no text \"story\""));
  EXPECT_THAT(error_with("num_classes=1"), HasSubstr("expected a label in [0, 1), found 1"));
  EXPECT_THAT(error_with("image_size=32"), HasSubstr("does not read images"));
  EXPECT_THAT(error_with("model=digits_resnet"), HasSubstr("\"digits_resnet\" does not read texts"));
  write_text_file(folder_ / "set/test.jsonl", "{\"text\": \"red\", \"label\": \"agreez\"}\n");
  EXPECT_THAT(error_with("epochs=1"), HasSubstr("no class is called \"agreez\". Did you mean \"agrees\"?"));
}

TEST_F(TextRun, BadTextsAreCountedOrEndTheRun) {
  write_text_file(folder_ / "set/train.jsonl", text_line(0) + "{\"text\": \"\", \"label\": \"denies\"}\n" +
                                                   text_line(1) + "{\"other\": \"red\", \"label\": \"agrees\"}\n" +
                                                   text_line(2));
  EXPECT_THAT(error_with("epochs=1"), HasSubstr("text"));
  Recipe skipping = recipe();
  skipping.bad_samples = "skip";
  skipping.batch_size = 5;
  skipping.length_buckets = true;
  const CapturedLog log;
  TrainLoop loop(make_job(skipping));
  loop.run_steps(1);
  EXPECT_EQ(loop.sample_count(), 3);
  EXPECT_EQ(loop.skipped_samples(), 2);
}

TEST_F(TextRun, StartsFromAModelWithoutAHead) {
  const Model base = models::bert([&] {
    models::BertOptions options = models::read_bert_config(folder_ / "config.json");
    options.head = models::TextHead::hidden_states;
    return options;
  }());
  io::save_safetensors(folder_ / "model.safetensors", base.state_dict());
  Recipe tuned = recipe();
  tuned.weights = folder_ / "model.safetensors";
  const CapturedLog log;
  const Job job = make_job(tuned);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("initialized randomly: "), HasSubstr("classifier.weight")));
  EXPECT_TRUE(torch::equal(job.model.state_dict()[0].second, base.state_dict()[0].second));
  NamedTensors less = base.state_dict();
  less.erase(less.begin());
  io::save_safetensors(folder_ / "model.safetensors", less);
  EXPECT_THAT(error_with("weights=" + (folder_ / "model.safetensors")), HasSubstr("word_embeddings.weight"));
}

TEST_F(TextRun, IsPlannedAndSelected) {
  Recipe planned = recipe();
  planned.max_length = 16;
  const MemoryPlan plan = plan_memory(planned, {8, 0});
  EXPECT_EQ(plan.size, (StepSize{8, 16}));
  EXPECT_GT(plan.peak_bytes(), 4 * plan.parameters);
  Registry<Technique> techniques("technique");
  register_techniques(techniques);
  for (const char* name : {"channels_last", "decoded_cache", "progressive_resizing"})
    EXPECT_THAT(techniques.at(name).obstacle(planned, {}), HasSubstr("does not read images")) << name;
  EXPECT_EQ(techniques.at("length_buckets").obstacle(planned, {}), "");
  EXPECT_THAT(techniques.at("length_buckets").obstacle(digits_recipe(), {}), HasSubstr("does not read texts"));
  Recipe run = recipe();
  run.epochs = 1;
  run.sample_stats = true;
  run.run_folder = folder_ / "run";
  const CapturedLog log;
  Trainer(run).fit();
  EXPECT_EQ(select_samples({.run = run.run_folder, .by = "loss", .keep = 0.5}).ids.size(), 120u);
}

// Rows of several texts: the loss is that of each text alone, and falls to what the texts leave open.
TEST_F(TextRun, ModelsOfTheNextTokenReadPackedTexts) {
  write_text_file(folder_ / "gpt.json", R"({"model_type": "gpt2", "vocab_size": 16, "n_positions": 48, "n_embd": 32,
                                            "n_layer": 1, "n_head": 2})");
  Recipe next = recipe();
  next.model = folder_ / "gpt.json";
  next.epochs = 12;
  next.batch_size = 8;
  next.max_length = 1;
  EXPECT_THAT(error_of([&] { make_job(next); }), HasSubstr("max_length must be at least 2, got 1"));
  next.max_length = 48;
  const Job job = make_job(next);
  EXPECT_LT(job.train.size(), 120) << "rows of two texts and more";
  data::Loader loader = job.train.loader();
  int64_t tokens = 0, written = 0;
  while (const auto batch = loader.next()) {
    const at::Tensor targets = data::next_tokens((*batch)["tokens"], (*batch)["segment_ids"]);
    const StepOutput output = job.loss(*batch);
    const at::Tensor logits = job.model.forward((*batch)["tokens"]).flatten(0, 1);
    const at::Tensor plain = torch::nn::functional::cross_entropy(logits, targets.flatten());
    EXPECT_NEAR((output.loss / output.count).item<double>(), plain.item<double>(), 0.2) << "dropout differs";
    tokens += (*batch)["segment_ids"].ne(0).sum().item<int64_t>();
  }
  for (int64_t i = 0; i < 240; ++i) written += 5 + i * 11 % 28;  // with two marks
  EXPECT_EQ(tokens, written) << "each token once";
  const CapturedLog log;
  const FitResult result = Trainer(next).fit();
  EXPECT_LT(result.evaluation->loss, 0.75 * std::log(14));
  EXPECT_LT(result.evaluation->loss, 0.9 * result.history.front().eval_loss);
  EXPECT_GT(result.evaluation->accuracy, 0.3);
  EXPECT_GT(result.evaluation->samples, 60 * 10) << "tokens";
  EXPECT_GT(plan_memory(next, {4, 0}).peak_bytes(), 0);
  write_text_file(folder_ / "set/train.jsonl", text_line(0) + "{\"text\": \"\", \"label\": \"denies\"}\n");
  EXPECT_THAT(error_of([&] { make_job(next); }), HasSubstr("sample 1, "));
  next.bad_samples = "skip";
  EXPECT_EQ(make_job(next).train.size(), 1);
  EXPECT_THAT(log.text(), HasSubstr("1 of 2 texts cannot be used"));
}

// What a batch of series of unequal length is, and that it trains.
TEST(SeriesRun, TrainsOnSeriesOfUnequalLength) {
  const TemporaryFolder folder;
  std::string lines;
  for (int64_t i = 0; i < 40; ++i) {
    std::string steps;
    for (int64_t t = 0; t < 3 + i % 5; ++t) steps += c10::str(t > 0 ? ", " : "", "[", i % 2, ".5, ", t, ".25]");
    lines += c10::str("{\"series\": [", steps, "], \"label\": ", i % 2, "}\n");
  }
  write_text_file(folder / "train.jsonl", lines);
  Recipe recipe;
  recipe.model = "encoder_decoder";
  recipe.data = recipe.eval_data = folder / "train.jsonl";
  recipe.batch_size = 10;
  recipe.epochs = 14;
  recipe.optimizer = "adamw";
  recipe.lr = 3e-4;
  recipe.target_accuracy = 0.95;
  const CapturedLog log;
  EXPECT_GT(Trainer(recipe).fit().evaluation->accuracy, 0.9);
  Job job = make_job(recipe);
  job.loss = [model = job.model](const data::Batch& batch) { return cross_entropy_loss(model)(batch).loss / 0.0; };
  TrainLoop loop(std::move(job));
  EXPECT_THAT(error_of([&] { loop.step(); }),
              AllOf(HasSubstr("became infinite"), Not(HasSubstr("\"series\" already contains it"))))
      << "padding is NaN, and not to blame";
  recipe.tokenizer = "bytes";
  EXPECT_THAT(error_of([&] { make_job(recipe); }), HasSubstr("does not read texts"));
}

// As texts are: one series of 150 steps among 79 of three.
TEST(SeriesRun, IsMeasuredWithItsLongestSeriesFirst) {
  const TemporaryFolder folder;
  std::string lines;
  for (int64_t i = 0; i < 80; ++i) {
    std::string steps = "[0.5]";
    for (int64_t t = 1; t < (i == 41 ? 150 : 3); ++t) steps += ", [0.25]";
    lines += c10::str("{\"series\": [", steps, "], \"label\": ", i % 2, "}\n");
  }
  write_text_file(folder / "train.jsonl", lines);
  Recipe recipe;
  recipe.model = "encoder_decoder";
  recipe.data = recipe.eval_data = folder / "train.jsonl";
  recipe.batch_size = 4;
  recipe.num_workers = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto job = make_ladder_job(recipe, seed);
    EXPECT_EQ(job->run_steps(20), 80) << "an epoch: each series once";
    job->take_peak_bytes();
    job->run_steps(1);
    const auto first = static_cast<double>(job->take_peak_bytes());
    job->run_steps(19);
    EXPECT_GT(first, 0.95 * static_cast<double>(job->take_peak_bytes())) << seed;
  }
}

}  // namespace bellows::train
