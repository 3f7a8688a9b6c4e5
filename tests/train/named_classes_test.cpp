// Classes that go by names, and work that is done once at the start of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>

#include "bellows/data/formats/webdataset.h"
#include "bellows/io/archives/tar.h"
#include "bellows/system/file.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/data/data_split.h"
#include "bellows/train/job.h"
#include "bellows/train/run/run_record.h"
#include "tests/support/captured_log.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A shard of the digits whose labels are names, or text without labels.
void rename_digits(const std::string& from, const std::string& to, int64_t first, int64_t count,
                   const std::function<std::string(int64_t)>& label_of) {
  const data::SourcePtr digits = data::open_webdataset({from});
  io::TarWriter shard(to);
  for (int64_t i = first; i < first + count; ++i) {
    const data::Sample sample = digits->read(i);
    const auto text = [](const data::Field& field) {
      return std::string_view(reinterpret_cast<const char*>(field.bytes.data()), field.bytes.size());
    };
    shard.add(std::string(sample.key) + ".png", std::string(text(*sample.find("png"))));
    shard.add(std::string(sample.key) + ".cls", label_of(std::stoll(std::string(text(*sample.find("cls"))))));
  }
  shard.close();
}

const std::vector<std::string> digit_names = {"zero", "one", "two",   "three", "four",
                                              "five", "six", "seven", "eight", "nine"};

std::vector<int64_t> first_labels(const data::Dataset& dataset) {
  data::Loader loader = dataset.sequential().batch(5).loader();
  const at::Tensor labels = (*loader.next())["label"].contiguous();
  return {labels.const_data_ptr<int64_t>(), labels.const_data_ptr<int64_t>() + labels.numel()};
}

/// How often a file is opened while `action` runs.
int opened(const std::string& path, const std::function<void()>& action) {
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  EXPECT_GE(inotify_add_watch(watch, path.c_str(), IN_OPEN | IN_CLOSE), 0);  // of two in a row one would be told
  action();
  int count = 0;
  alignas(inotify_event) std::array<char, 4096> buffer;
  for (ssize_t size; (size = read(watch, buffer.data(), buffer.size())) > 0;)
    for (ssize_t at = 0; at < size; at += static_cast<ssize_t>(sizeof(inotify_event)))
      count += (reinterpret_cast<const inotify_event*>(buffer.data() + at)->mask & IN_OPEN) != 0;
  close(watch);
  return count;
}

}  // namespace

TEST(NamedClasses, OfPicturesInATarTrainAndAreEvaluatedAlike) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "set");
  const auto named = [](int64_t digit) { return digit_names[static_cast<size_t>(digit)]; };
  rename_digits(digits_folder() + "/train-000.tar", folder / "set/train-000.tar", 0, 360, named);
  // Of fewer classes: numbers come from the training data.
  rename_digits(digits_folder() + "/test-000.tar", folder / "set/test-000.tar", 0, 5, named);
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  recipe.data = folder / "set";
  recipe.eval_data.clear();
  const DataSplit split = resolve(recipe).split();
  EXPECT_THAT(split.classes,
              ElementsAre("eight", "five", "four", "nine", "one", "seven", "six", "three", "two", "zero"));
  const Job job = make_job(recipe);
  Recipe numbers = recipe;
  numbers.data = digits_folder();
  std::vector<int64_t> expected, expected_eval;
  const auto number_of = [&](int64_t digit) {
    return std::find(split.classes.begin(), split.classes.end(), named(digit)) - split.classes.begin();
  };
  for (const int64_t digit : first_labels(open_train_data(numbers))) expected.push_back(number_of(digit));
  for (const int64_t digit : first_labels(*open_eval_data(numbers))) expected_eval.push_back(number_of(digit));
  EXPECT_EQ(first_labels(job.train), expected);
  EXPECT_EQ(first_labels(*job.eval), expected_eval);
  EXPECT_EQ(make_model(resolve(recipe)).state_dict().back().second.size(0), 10);
  rename_digits(digits_folder() + "/test-000.tar", folder / "set/test-000.tar", 0, 5,
                [](int64_t digit) { return std::to_string(digit); });
  EXPECT_THAT(error_of([&] { first_labels(*make_job(recipe).eval); }),
              HasSubstr("expected a class name, like the labels of the other samples, found a number"));
}

TEST(NamedClasses, NamesForEvaluationBesideNumbersForTrainingAreRefusedWithTheClasses) {
  const TemporaryFolder folder;
  write_text_file(folder / "train.jsonl", "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\n");
  write_text_file(folder / "eval.jsonl", "{\"text\": \"a\", \"label\": \"yes\"}\n");
  Recipe recipe = digits_recipe();
  recipe.model = "bert-20m";
  recipe.tokenizer = "bytes";
  recipe.data = folder / "train.jsonl";
  recipe.eval_data = folder / "eval.jsonl";
  EXPECT_THAT(error_of([&] { first_labels(*make_job(recipe).eval); }),
              HasSubstr("no class is called \"yes\". The dataset has 2 classes: \"0\", \"1\""));
}

TEST(NamedClasses, ASingleOneIsWarnedOf) {
  Recipe recipe = digits_recipe();
  recipe.model = "mlp";
  const CapturedLog log;
  data::DatasetInfo info;
  info.image_size = {8, 8, 1};
  info.classes = {"all"};
  ResolvedJob job = resolve_model(recipe);
  job.data = DataSplit{
      data::Dataset(data::from_tensors({{"image", at::zeros({1, 8, 8, 1}, at::kByte)}}), info), {}, "", {"all"}};
  make_model(job);
  EXPECT_THAT(log.text(), HasSubstr("all labels have the same class"));
}

TEST(NamedClasses, AMissingLabelOfATextIsNoClass) {
  const TemporaryFolder folder;
  write_text_file(folder / "texts.jsonl",
                  "{\"text\": \"a\", \"label\": \"yes\"}\n{\"text\": \"b\", \"label\": \"no\"}\n"
                  "{\"text\": \"c\", \"label\": null}\n");
  Recipe recipe = digits_recipe();
  recipe.model = "bert-20m";
  recipe.tokenizer = "bytes";
  recipe.eval_data.clear();
  recipe.data = folder / "texts.jsonl";
  EXPECT_THAT(resolve(recipe).split().classes, ElementsAre("no", "yes"));
  EXPECT_THAT(error_of([&] { first_labels(open_train_data(recipe)); }), HasSubstr("label: sample 2, label at byte "));
}

TEST(StartUp, AVocabularyIsReadOnce) {
  const TemporaryFolder folder;
  write_text_file(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nred\nblue\n");
  write_text_file(folder / "texts.jsonl", "{\"text\": \"red\", \"label\": 0}\n{\"text\": \"blue\", \"label\": 1}\n");
  write_text_file(folder / "config.json",
                  R"({"model_type": "bert", "vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 1,
                      "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 8})");
  Recipe recipe = digits_recipe();
  recipe.model = folder / "config.json";
  recipe.data = recipe.eval_data = folder / "texts.jsonl";
  recipe.tokenizer = folder / "vocab.txt";
  recipe.batch_size = 2;
  EXPECT_EQ(opened(recipe.tokenizer, [&] { make_job(recipe); }), 1);
}

}  // namespace bellows::train
