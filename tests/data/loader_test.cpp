#include "bellows/data/loader/loader.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "bellows/data/loader/batch_memory.h"
#include "bellows/data/step_error.h"
#include "bellows/io/tensors/safetensors.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset digits(const std::string& split = "train") {
  return open(kDigits, {.split = split});
}

Dataset augmented() {
  return digits().shuffle(3).random_crop(8, 8, 1).flip().normalize().batch(33);
}

Dataset numbers(int64_t n) {
  return Dataset(std::make_shared<CountingSource>(n));
}

TEST(Loader, GivesTheSameBitsForAnyNumberOfThreads) {
  std::vector<std::vector<std::string>> expected;
  for (int64_t threads : {0, 1, 2, 4, 7}) {
    Loader loader = augmented().threads(threads).prefetch(1 + threads).loader();
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto batches = fingerprints(loader, epoch);
      if (threads == 0) expected.push_back(batches);
      EXPECT_EQ(batches, expected[static_cast<size_t>(epoch)]) << threads << " threads, epoch " << epoch;
    }
  }
  EXPECT_EQ(expected[0].size(), 44u);
  EXPECT_NE(expected[0], expected[1]);
}

TEST(Loader, ShufflesAndAugmentsAnewEachEpochAndForEachSeed) {
  Loader loader = numbers(100).shuffle(1).batch(100).loader(), other = numbers(100).shuffle(2).batch(100).loader();
  loader.start(0);
  const auto first = loader.next()->ids();
  loader.start(1);
  EXPECT_NE(loader.next()->ids(), first);
  other.start(0);
  EXPECT_NE(other.next()->ids(), first);
  loader.start(0);
  EXPECT_EQ(loader.next()->ids(), first);
}

TEST(Loader, RandomStepsDependOnTheSampleAndNotOnItsNeighbours) {
  const Dataset all = digits().random_crop(8, 8, 2).flip().batch(7);
  Loader whole = all.loader(), part = all.subset({100, 7, 23}).batch(2).loader();
  std::vector<at::Tensor> rows(1438);
  for (const Batch& batch : whole.epoch(2)) {
    for (int64_t i = 0; i < batch.size(); ++i)
      rows[static_cast<size_t>(batch.ids()[static_cast<size_t>(i)])] = batch["image"][i].clone();
  }
  for (const Batch& batch : part.epoch(2)) {
    for (int64_t i = 0; i < batch.size(); ++i)
      EXPECT_TRUE(at::equal(batch["image"][i], rows[static_cast<size_t>(batch.ids()[static_cast<size_t>(i)])]));
  }
}

TEST(Loader, DeliversEachSampleOnceWhateverTheBatchSize) {
  for (int64_t n : {1, 5, 31, 32, 33, 100}) {
    for (int64_t batch_size : {1, 7, 32, 200}) {
      Loader loader = numbers(n).shuffle(9).batch(batch_size).threads(3).loader();
      std::multiset<int64_t> seen;
      int64_t batches = 0;
      for (const Batch& batch : loader.epoch(4)) {
        EXPECT_EQ(batch.index(), batches++);
        EXPECT_EQ(batch.size(), std::min(batch_size, n - batch.index() * batch_size));
        for (int64_t i = 0; i < batch.size(); ++i)
          EXPECT_EQ(batch["x"].const_data_ptr<int64_t>()[i], batch.ids()[static_cast<size_t>(i)]);
        seen.insert(batch.ids().begin(), batch.ids().end());
      }
      EXPECT_EQ(batches, loader.batches_per_epoch());
      std::multiset<int64_t> all;
      for (int64_t i = 0; i < n; ++i) all.insert(i);
      EXPECT_EQ(seen, all) << n << " samples in batches of " << batch_size;
      EXPECT_FALSE(loader.next().has_value());
    }
  }
}

TEST(Loader, LeavesTheRestOutOnRequest) {
  Loader loader = numbers(10).batch(4, Remainder::drop).loader();
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(loader.samples_per_epoch(), 8);
  int64_t samples = 0;
  for (const Batch& batch : loader.epoch(0)) samples += batch.size();
  EXPECT_EQ(samples, 8);
}

TEST(Loader, ResumesWithinAnEpoch) {
  for (int64_t threads : {0, 2}) {
    Loader loader = augmented().threads(threads).loader();
    const auto whole = fingerprints(loader, 5);
    for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{20}, int64_t{43}, int64_t{44}}) {
      EXPECT_EQ(fingerprints(loader, 5, first), std::vector<std::string>(whole.begin() + first, whole.end()));
    }
  }
}

TEST(Loader, StartsAnewInTheMidstOfAnEpoch) {
  Loader loader = augmented().threads(3).prefetch(5).loader();
  const auto whole = fingerprints(loader, 1);
  for (int64_t taken = 0; taken < 6; ++taken) {
    loader.start(0);
    for (int64_t i = 0; i < taken; ++i) ASSERT_TRUE(loader.next());
    loader.start(1);
    EXPECT_EQ(fingerprint(*loader.next()), whole[0]);
  }
}

TEST(Loader, BeginsEpochZeroByItself) {
  Loader loader = numbers(3).loader();
  EXPECT_THAT(loader.next()->ids(), ElementsAre(0, 1, 2));
  EXPECT_FALSE(loader.next());
}

TEST(Loader, MatchesWebdatasetAndPillowOnTheDigits) {
  NamedTensors expected = io::load_safetensors(kGoldens + "digits_test.safetensors");
  auto golden = [&](const std::string& name) {
    return std::find_if(expected.begin(), expected.end(), [&](const auto& entry) { return entry.first == name; })
        ->second;
  };
  Loader loader = digits("test").batch(1000).loader();
  const Batch batch = *loader.next();
  EXPECT_TRUE(at::equal(batch["label"], golden("label")));
  EXPECT_TRUE(at::equal(batch["image"], golden("image").unsqueeze(1).to(at::kFloat).div(255)));
}

TEST(Loader, DecodesJpegsAsTheCodecDoes) {
  TemporaryFolder folder;
  const at::Tensor picture = at::arange(20 * 30 * 3, at::kInt).remainder(251).to(at::kByte).view({20, 30, 3});
  const io::Bytes jpeg = io::encode_jpeg(picture);
  write_shard(folder / "x.tar",
              {{"a.jpg", std::string(io::as_text(jpeg))}, {"b.JPEG", std::string(io::as_text(jpeg))}});
  Loader loader = open(folder / "x.tar").loader();
  const Batch batch = *loader.next();
  const at::Tensor expected = io::decode_image(jpeg).permute({2, 0, 1}).to(at::kFloat).div(255);
  EXPECT_TRUE(at::equal(batch["image"][0], expected));
  EXPECT_TRUE(at::equal(batch["image"][1], expected));
}

TEST(Loader, WritesChannelsLast) {
  const Dataset set = digits("test").decode("rgb").batch(8).threads(2);
  Loader plain = set.loader(), last = set.channels_last().loader();
  const Batch a = *plain.next(), b = *last.next();
  EXPECT_TRUE(b["image"].is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(b["image"].sizes(), c10::IntArrayRef({8, 3, 8, 8}));
  EXPECT_TRUE(at::equal(a["image"], b["image"]));
}

TEST(Loader, RecyclesTheMemoryOfBatchesThatAreGone) {
  Loader loader = digits().batch(32, Remainder::drop).threads(2).prefetch(2).loader();
  std::set<const void*> seen;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    for (const Batch& batch : loader.epoch(epoch)) seen.insert(batch["image"].const_data_ptr());
  }
  EXPECT_LE(seen.size(), 6u);  // of 176 batches: two ahead, the consumer's, and some of an epoch's end
}

TEST(Loader, NeverRecyclesMemoryThatIsInUse) {
  Loader loader = numbers(400).batch(10).threads(3).loader();
  std::vector<at::Tensor> views;
  for (const Batch& batch : loader.epoch(0)) views.push_back(batch["x"].slice(0, 2, 4));
  for (int64_t epoch = 1; epoch < 4; ++epoch) {
    for (const Batch& batch : loader.epoch(epoch)) ASSERT_EQ(batch.size(), 10);
  }
  for (size_t i = 0; i < views.size(); ++i)
    EXPECT_EQ(views[i].const_data_ptr<int64_t>()[0], static_cast<int64_t>(10 * i + 2));
}

TEST(Loader, BatchesOutliveTheLoader) {
  std::optional<Batch> batch;
  {
    Loader loader = numbers(50).batch(10).threads(2).loader();
    batch = loader.next();
  }
  EXPECT_EQ((*batch)["x"].sum().item<int64_t>(), 45);
}

TEST(Loader, BatchTensorsAreIndependentOfEachOther) {
  Loader loader = Dataset(from_tensors({{"x", at::zeros({8, 2})}})).batch(4).threads(0).loader();
  {
    Batch batch = *loader.next();
    at::Tensor x = batch["x"];
    x.requires_grad_(true);
    EXPECT_TRUE(x.is_leaf());
  }
  EXPECT_FALSE((*loader.next())["x"].requires_grad());
}

TEST(Loader, StacksTensorsAndTransformsUint8Pictures) {
  const at::Tensor pictures = at::arange(2 * 4 * 5 * 3, at::kByte).view({2, 4, 5, 3});
  Loader loader =
      Dataset(from_tensors(
                  {{"image", pictures}, {"label", at::arange(2)}, {"weight", at::arange(6, at::kDouble).view({2, 3})}}))
          .center_crop(2, 3)
          .loader();
  const Batch batch = *loader.next();
  EXPECT_TRUE(
      at::equal(batch["image"], pictures.slice(1, 1, 3).slice(2, 1, 4).permute({0, 3, 1, 2}).to(at::kFloat).div(255)));
  EXPECT_TRUE(at::equal(batch["label"], at::arange(2)));
  EXPECT_TRUE(at::equal(batch["weight"], at::arange(6, at::kDouble).view({2, 3})));
  EXPECT_THAT(error_of([&] { batch["images"]; }),
              HasSubstr("no tensor has the name \"images\". The batch contains: image, label, weight"));
}

TEST(Loader, CachingChangesNothing) {
  Loader plain = augmented().resize(9, 10).loader();
  Loader cached = augmented().resize(9, 10).cache(1 << 20).threads(2).loader(),
         little = augmented().resize(9, 10).cache(1000).loader();
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const auto expected = fingerprints(plain, epoch);
    EXPECT_EQ(fingerprints(cached, epoch), expected);
    EXPECT_EQ(fingerprints(little, epoch), expected);
  }
}

TEST(Loader, RefusesImpossibleOptions) {
  EXPECT_THAT(error_of([] { numbers(5).batch(0).loader(); }), HasSubstr("batch size of at least 1, got 0"));
  EXPECT_THAT(error_of([] { numbers(5).threads(-2).loader(); }), HasSubstr("0 to 1024 threads, got -2"));
  EXPECT_THAT(error_of([] { numbers(5).prefetch(0).loader(); }), HasSubstr("1 to 65536 batches, got 0"));
  EXPECT_THAT(error_of([] { numbers(0).loader(); }), HasSubstr("contains no samples: numbers"));
  EXPECT_THAT(error_of([] { numbers(5).batch(6, Remainder::drop).loader(); }),
              HasSubstr("5 samples are not enough for a full batch of 6"));
  Loader loader = numbers(5).batch(2).loader();
  EXPECT_THAT(error_of([&] { loader.start(0, 4); }), HasSubstr("first_batch in [0, 3], got 4"));
}

TEST(Loader, TakesBatchesLargerThanTheSet) {
  for (int64_t threads : {0, 2}) {
    Loader loader = numbers(5).batch(INT64_MAX).threads(threads).loader();
    EXPECT_EQ(loader.batches_per_epoch(), 1);
    EXPECT_EQ(loader.samples_per_epoch(), 5);
    EXPECT_THAT(loader.next()->ids(), ElementsAre(0, 1, 2, 3, 4));
    EXPECT_FALSE(loader.next());
  }
  EXPECT_EQ(numbers(5).batch(INT64_MAX - 2).loader().batches_per_epoch(), 1);
  EXPECT_THAT(error_of([] { numbers(5).prefetch(INT64_MAX).loader(); }),
              HasSubstr("1 to 65536 batches, got 9223372036854"));
}

/// The memory for tensors, which can be short.
class ScarceMemory final : public c10::Allocator {
 public:
  ScarceMemory() { c10::SetCPUAllocator(this, /*priority=*/255); }
  ~ScarceMemory() override { c10::SetCPUAllocator(usual_, /*priority=*/255); }
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(!short_ || bytes == 0, "no memory for ", bytes, " bytes");
    return usual_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  void be_short(bool on) { short_ = on; }

 private:
  c10::Allocator* const usual_ = c10::GetCPUAllocator();
  std::atomic<bool> short_{false};
};

TEST(Loader, LosesNoBatchWhereMemoryRunsOut) {
  const Dataset mixed = augmented().mix({.mixup_alpha = 0.4, .num_classes = 10}).prefetch(3);
  Loader plain = mixed.loader();
  const auto expected = fingerprints(plain, 0);
  ScarceMemory memory;
  for (const int64_t threads : {0, 2}) {
    for (const int patience : {2, 3}) {  // fails where batches are made, and where they are put together
      Loader loader = mixed.threads(threads).loader();
      loader.start(0);
      std::vector<Batch> held;  // no memory comes back
      std::vector<std::string> found;
      int64_t failures = 0;
      for (int call = 0; call < 1000; ++call) {
        memory.be_short(call % patience != 0);
        try {
          std::optional<Batch> batch = loader.next();
          memory.be_short(false);
          if (!batch) break;
          found.push_back(fingerprint(*batch));
          held.push_back(std::move(*batch));
        } catch (const c10::Error& error) {
          EXPECT_THAT(error.what_without_backtrace(), ::testing::ContainsRegex("no memory for|out of memory"));
          ++failures;
        }
      }
      EXPECT_EQ(found, expected) << threads << " threads";
      EXPECT_GT(failures, 10) << threads << " threads";
    }
  }
}

/// What next() throws because of the user's own code.
std::string step_error_of(const Dataset& dataset) {
  Loader loader = dataset.loader();
  try {
    while (loader.next()) {
    }
  } catch (const StepError& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST(Steps, OfTheUserThatFailAreNoBadSamples) {
  const auto lookup = [](const ImageView& image, Scratch&, RandomStream&) {
    if (image.at(0, 0)[0] == image.at(3, 3)[0]) static_cast<void>(std::vector<int>().at(7));
    return image;
  };
  const auto number = [](const ImageView& image, Scratch&, RandomStream&) -> ImageView {
    if (image.at(0, 0)[0] == image.at(3, 3)[0]) throw 7;
    return image;
  };
  const PixelPass refusing = [](const ImageView&, RandomStream&, const PixelOutput&) {
    TORCH_CHECK_VALUE(false, "not mine");
  };
  for (const OnBadSample policy : {OnBadSample::fail, OnBadSample::skip}) {
    for (const int64_t threads : {0, 2}) {
      const Dataset set = digits().batch(8).threads(threads).on_bad_sample(policy);
      const std::string message = step_error_of(set.flip().transform({lookup}));
      EXPECT_THAT(message, ContainsRegex(R"(^transform 2: sample "[0-9]+" \(id [0-9]+\), .*train-000.tar: )"));
      EXPECT_THAT(message, AllOf(HasSubstr("vector"), HasSubstr("an error in the step itself")));
      EXPECT_THAT(step_error_of(set.transform({number})), HasSubstr("an exception that is not a std::exception"));
      EXPECT_THAT(step_error_of(set.pixels(refusing)),
                  AllOf(ContainsRegex("^pixels: sample \"[0-9]+\" .id 0."), HasSubstr(": not mine")));
    }
  }
}

TEST(Steps, ThatFailAlwaysEndTheFirstEpochAtOnce) {
  std::atomic<int> calls{0};
  const auto broken = [&](const ImageView&, Scratch&, RandomStream&) -> ImageView {
    ++calls;
    throw std::logic_error("broken");
  };
  Loader loader = digits().transform({broken}).on_bad_sample(OnBadSample::skip).loader();
  EXPECT_THROW(loader.start(0), StepError);
  EXPECT_EQ(calls, 1);
}

TEST(BatchMemory, SaysThatThereIsNotEnough) {
  const auto memory = std::make_shared<BatchMemory>(1);
  try {
    memory->take(size_t{1} << 62);
    ADD_FAILURE() << "expected an error";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("A tensor of the batch needs 4611686018427387904"));
  }
}

}  // namespace
}  // namespace bellows::data::testing
