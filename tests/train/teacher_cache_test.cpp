// A teacher's outputs on disk: the file, what guards it, and training from it.
#include "bellows/train/teacher/teacher_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bellows/nn/distillation.h"
#include "bellows/plan/plan.h"
#include "bellows/system/file.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/inference/inference_model.h"
#include "bellows/train/teacher/cached_source.h"
#include "tests/train/ranks_jobs.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TeacherCache : public testing::Test {
 protected:
  void SetUp() override {
    weights_ = trained_weights(folder_, "digits_resnet", 12);
    cache_ = folder_.path() + "/cache/outputs.safetensors";
  }

  Recipe recipe(const std::vector<std::string>& settings = {}) const {
    Recipe result = digits_recipe();
    result.model = "mlp";
    result.lr = 0.02;
    result.teacher = "digits_resnet";
    result.teacher_weights = weights_;
    for (const std::string& setting : settings) result.set(setting);
    return result;
  }
  Recipe cached(std::vector<std::string> settings = {}) const {
    settings.insert(settings.begin(), "teacher_cache=" + cache_);
    return recipe(settings);
  }
  std::string error_with(const std::vector<std::string>& settings) const {
    return error_of([&] { make_job(cached(settings)); });
  }
  bool exists() const { return std::filesystem::exists(cache_); }

  TemporaryFolder folder_;
  std::string weights_, cache_;
};

/// More than one epoch.
std::vector<double> cached_losses(const Recipe& recipe, int64_t steps = 15) {
  return losses_of(recipe, steps);
}

void flip_byte(const std::string& path, size_t at) {
  std::string bytes = read_text_file(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_F(TeacherCache, WithAllLogitsTrainingIsBitIdenticalToTheTeacherItself) {
  const std::vector<double> plain = cached_losses(recipe());
  EXPECT_EQ(cached_losses(cached()), plain) << "computed";
  ASSERT_TRUE(exists());
  EXPECT_EQ(cached_losses(cached()), plain) << "read";
  const std::vector<double> top = cached_losses(recipe({"teacher_cache=" + folder_.path() + "/top", "teacher_top=10"}));
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(top[i], plain[i], 1e-4 * plain[i]) << "step " << i;
}

TEST_F(TeacherCache, TheFileHasTheTeachersOutputsOfEachSample) {
  const ResolvedJob job = resolve(cached({"teacher_top=3", "distill_temperature=4"}));
  const Job made = make_job(job);
  const CacheFile file(cache_);
  EXPECT_EQ(file.layout().shape, std::vector<int64_t>{3});
  EXPECT_EQ(static_cast<int64_t>(file.ids().size()), made.train.size());
  const auto distillation = make_distillation(job, made.model);
  data::Loader loader = made.train.loader();
  loader.start(1);
  const data::Batch batch = *loader.next();
  const nn::TopLogits top = nn::top_logits(distillation->output(model_inputs(distillation->teacher, batch)), 3, 4);
  EXPECT_TRUE(torch::allclose(batch[teacher_logits], top.values, 1e-5, 1e-5));
  EXPECT_TRUE(torch::equal(batch[teacher_classes].to(at::kLong), top.indices));
  EXPECT_TRUE(torch::allclose(batch[teacher_rest], top.rest, 1e-5, 1e-5));
}

TEST_F(TeacherCache, WorksWithOtherSettings) {
  const std::vector<double> plain = cached_losses(cached());
  const std::vector<std::string> cases[] = {{"compile=step"},
                                            {"compile=forward"},
                                            {"num_workers=2", "image_cache_mb=8"},
                                            {"channels_last=true", "batch_size_start=16", "growth_epochs=1"},
                                            {"gradient_accumulation_steps=2"}};
  for (const auto& settings : cases) {
    SCOPED_TRACE(settings.front());
    const std::vector<double> cache = cached_losses(cached(settings)), teacher = cached_losses(recipe(settings));
    ASSERT_EQ(cache.size(), teacher.size());
    for (size_t i = 0; i < cache.size(); ++i) EXPECT_NEAR(cache[i], teacher[i], 2e-3 * teacher[i]) << "step " << i;
  }
  const std::vector<std::string> bf16{"precision=bf16", "teacher_cache=" + folder_.path() + "/bf16"};
  const std::vector<double> low = cached_losses(cached(bf16)), low_teacher = cached_losses(recipe({"precision=bf16"}));
  for (size_t i = 0; i < low.size(); ++i) EXPECT_NEAR(low[i], low_teacher[i], 2e-2 * low_teacher[i]) << "step " << i;
}

// A student learns from few logits nearly as well as from all of them.
TEST_F(TeacherCache, TheStudentApproachesItsTeacherFromItsTopLogits) {
  const std::vector<double> losses = cached_losses(cached({"teacher_top=3", "distill=1"}), 60);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
}

TEST_F(TeacherCache, RanksLearnWhatOneProcessLearns) {
  const Recipe recipe = cached({"data_parallel=ddp"});
  const auto losses = losses_of_two_ranks(recipe, 20);
  EXPECT_EQ(losses[0], losses[1]);
  const std::vector<double> alone = cached_losses(this->recipe(), 20);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(losses[0][i], alone[i], 1e-4 * alone[i]) << "step " << i;
}

// As ranks do that start without the file.
TEST_F(TeacherCache, OneOfSeveralComputesTheFileAndTheOthersWait) {
  const ResolvedJob job = resolve(cached());
  Distillation distillation = *make_distillation(job, make_model(job));
  std::atomic<int64_t> seen = 0;
  distillation.teacher = observed_model(distillation.teacher, [&](int64_t samples, double) { seen += samples; });
  const data::Dataset train = train_part(job);
  std::vector<std::string> errors(3, "not run");
  std::vector<std::thread> threads;
  for (std::string& error : errors) {
    threads.emplace_back([&] { error = error_of([&] { with_teacher_outputs(job, distillation, train); }); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, std::vector<std::string>(3, ""));
  EXPECT_EQ(seen, train.size());
}

TEST_F(TeacherCache, AnotherTeacherOrDatasetIsAnErrorThatNamesIt) {
  make_job(cached({"teacher_top=3"}));
  const TemporaryFolder other;
  const std::string weights = trained_weights(other, "digits_resnet", 13);
  EXPECT_THAT(error_with({"teacher_top=3", "teacher_weights=" + weights}),
              AllOf(HasSubstr(cache_), HasSubstr("other settings (teacher_weights: \""), Not(HasSubstr("data: "))));
  EXPECT_THAT(error_with({"teacher_top=3", "data=" + digits_folder() + "/train-001.tar"}),
              AllOf(HasSubstr("(data: \""), Not(HasSubstr("teacher_weights: "))));
  EXPECT_THAT(error_with({}), HasSubstr("teacher_top: \"3\" in the file, \"0\" now"));
  EXPECT_THAT(error_with({"teacher_top=3", "distill_temperature=3"}), HasSubstr("distill_temperature: \"2\""));
  EXPECT_EQ(error_with({"teacher_top=3", "precision=bf16"}), "") << "the file is more exact than needed";
  EXPECT_THAT(error_with({"teacher_top=3", "teacher_dtype=bf16"}), HasSubstr("teacher_dtype: \"auto\" in the file"));
  EXPECT_THAT(error_with({"teacher_top=3", "image_size=16"}), HasSubstr("image_size: \"0\" in the file"));
  EXPECT_EQ(error_with({"teacher_top=3", "seed=7", "lr=0.5", "distill=0.1"}), "");
}

TEST_F(TeacherCache, AFileInBf16IsNoTeacherForFp32) {
  make_job(cached({"precision=bf16"}));
  EXPECT_THAT(error_with({}), HasSubstr("precision: \"bf16 O1\" in the file, \"fp32\" now"));
}

TEST_F(TeacherCache, SettingsThatChangeTheInputsAreRefused) {
  EXPECT_THAT(error_with({"augment=crop"}),
              AllOf(HasSubstr("augment = crop"), HasSubstr("another image in each epoch")));
  EXPECT_THAT(error_with({"image_size=16", "image_size_start=8", "growth_epochs=1"}),
              HasSubstr("image_size_start = 8"));
  EXPECT_THAT(error_of([&] { make_job(recipe({"teacher_top=3"})); }), HasSubstr("needs teacher_cache"));
  EXPECT_THAT(error_with({"teacher_top=11"}), HasSubstr("k from 1 to the number of classes 10"));
  EXPECT_FALSE(exists());
  Recipe alone = digits_recipe();
  alone.teacher_cache = cache_;
  EXPECT_THAT(error_of([&] { make_job(alone); }), HasSubstr("needs a teacher"));
}

TEST_F(TeacherCache, DamageIsDetected) {
  make_job(cached());
  const std::string good = read_text_file(cache_);
  for (const size_t at : {good.size() - 1, good.size() / 2}) {
    flip_byte(cache_, at);
    EXPECT_THAT(error_with({}), AllOf(HasSubstr(cache_), HasSubstr("damaged"), HasSubstr("checksum")));
    flip_byte(cache_, at);
  }
  EXPECT_EQ(error_with({}), "");
  std::ofstream(cache_, std::ios::binary) << good.substr(0, good.size() - 8);
  EXPECT_THAT(error_with({}), HasSubstr(cache_));
  io::save_safetensors(cache_, {{"x", at::zeros({2})}});
  EXPECT_THAT(error_with({}), HasSubstr("expected a file with a teacher's outputs"));
  std::string newer = good;
  newer.replace(newer.find("\"version\":\"1\""), 13, "\"version\":\"2\"");
  std::ofstream(cache_, std::ios::binary) << newer;
  EXPECT_THAT(error_with({}), HasSubstr("expected version 1, got 2"));
}

// As after kill -9: whatever was written has another name.
TEST_F(TeacherCache, AnUnfinishedFileIsComputedAgain) {
  std::filesystem::create_directories(folder_.path() + "/cache");
  {
    CacheWriter writer(cache_, {{"teacher", "digits_resnet"}}, {{10}, at::kFloat, 0});
    writer.add({0, 1}, {.logits = torch::rand({2, 10})});
    EXPECT_FALSE(exists());
    EXPECT_THAT(error_of([&] {
                  writer.add({2}, {.logits = torch::rand({1, 9})});
                }),
                HasSubstr("[1, 10], as for the first batch"));
    EXPECT_EQ(error_with({}), "") << "while the other file is unfinished";
  }
  EXPECT_EQ(static_cast<int64_t>(CacheFile(cache_).ids().size()), make_job(cached()).train.size());
}

TEST_F(TeacherCache, RowsKeepTheirDtypeAndShape) {
  at::manual_seed(3);
  const std::string path = folder_.path() + "/rows";
  const CacheLayout layout{{3, 5}, at::kBFloat16, 5};
  const at::Tensor logits = torch::randn({4, 3, 5}).to(at::kBFloat16),
                   classes = torch::randint(40'000, {4, 3, 5}, at::kInt);
  const at::Tensor rest = torch::randn({4, 3});
  {
    CacheWriter writer(path, {{"a", "b \"c\""}}, layout);
    writer.add({9, 4}, {logits.slice(0, 0, 2), classes.slice(0, 0, 2), rest.slice(0, 0, 2)});
    writer.add({0, 7}, {logits.slice(0, 2), classes.slice(0, 2), rest.slice(0, 2)});
    writer.finish();
  }
  const auto file = std::make_shared<const CacheFile>(path);
  EXPECT_EQ(file->layout(), layout);
  EXPECT_EQ(file->facts(), (CacheFacts{{"a", "b \"c\""}}));
  EXPECT_EQ(file->ids(), (std::vector<int64_t>{9, 4, 0, 7}));
  EXPECT_EQ(io::load_safetensors(path).size(), 2u) << "not readable as safetensors";
  const data::SourcePtr source = cached_outputs(data::from_tensors({{"x", torch::rand({10})}}), file);
  const data::Sample sample = source->read(7);
  const auto values = [&](const char* name) {
    const data::Field& field = *sample.find(name);
    return at::from_blob(const_cast<std::byte*>(field.bytes.data()), field.sizes, field.dtype).clone();
  };
  EXPECT_TRUE(torch::equal(values(teacher_logits), logits[3]));
  EXPECT_TRUE(torch::equal(values(teacher_classes), classes[3]));
  EXPECT_TRUE(torch::equal(values(teacher_rest), rest[3]));
  EXPECT_THAT(error_of([&] { source->read(1); }), HasSubstr("are missing"));
  EXPECT_THAT(error_of([&] {
                cached_outputs(data::from_tensors({{"x", torch::rand({9})}}), file);
              }),
              HasSubstr("found sample 9"));
}

// The step then holds neither the teacher nor its activations.
TEST_F(TeacherCache, PlansWithoutTheTeacher) {
  const int64_t cache = plan_memory(cached(), {128, 0}).peak_bytes(),
                teacher = plan_memory(recipe(), {128, 0}).peak_bytes();
  const int64_t alone = plan_memory(recipe({"teacher=", "teacher_weights="}), {128, 0}).peak_bytes();
  EXPECT_LT(cache, teacher);
  EXPECT_NEAR(static_cast<double>(cache) / static_cast<double>(alone), 1, 0.1);
}

}  // namespace bellows::train
