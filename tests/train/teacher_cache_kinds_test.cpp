// A teacher's outputs on disk for every kind of model: tokens, pixels, numbers, and several inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "bellows/models/register_model.h"
#include "bellows/system/file.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

using testing::HasSubstr;

constexpr int64_t kind_samples = 40;

/// A class for each pixel.
struct CachedPixelsImpl : torch::nn::Module {
  CachedPixelsImpl(int64_t num_classes, int64_t in_channels)
      : conv(register_module("conv",
                             torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, num_classes, 3).padding(1)))) {}
  at::Tensor forward(const at::Tensor& x) { return conv(x); }
  torch::nn::Conv2d conv;
};
TORCH_MODULE(CachedPixels);
BELLOWS_MODEL("test_cached_pixels", CachedPixels, .output = models::OutputKind::pixel);

/// Two inputs and a class.
struct CachedPairImpl : torch::nn::Module {
  explicit CachedPairImpl(int64_t num_classes) : linear(register_module("linear", torch::nn::Linear(8, num_classes))) {}
  at::Tensor forward(const at::Tensor& left, const at::Tensor& right) { return linear(left - right); }
  torch::nn::Linear linear;
};
TORCH_MODULE(CachedPair);
BELLOWS_MODEL("test_cached_pair", CachedPair, .inputs = {{"left", {8}}, {"right", {8}}});

void write_cached_texts(const std::string& folder) {
  std::string text;
  for (int64_t i = 0; i < kind_samples; ++i)
    text += c10::str("{\"text\": \"", std::string(static_cast<size_t>(5 + i * 7 % 40), static_cast<char>('a' + i % 7)),
                     "\"}\n");
  write_text_file(folder + "/data.jsonl", text);
  write_text_file(
      folder + "/gpt.json",
      R"({"model_type": "gpt2", "vocab_size": 260, "n_positions": 24, "n_embd": 8, "n_layer": 1, "n_head": 2,
                      "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})");
}

void write_cached_masks(const std::string& folder) {
  const at::Tensor image = torch::randint(0, 256, {kind_samples, 8, 8, 1}, at::kByte);
  at::Tensor mask = image.squeeze(3).div(64, "floor").to(at::kByte);
  mask.slice(1, 0, 1).fill_(255);  // ignored
  io::save_safetensors(folder + "/data.safetensors", {{"image", image}, {"mask", mask}});
}

void write_cached_pairs(const std::string& folder) {
  io::save_safetensors(folder + "/data.safetensors", {{"left", torch::rand({kind_samples, 8})},
                                                      {"right", torch::rand({kind_samples, 8})},
                                                      {"label", torch::arange(kind_samples) % 3}});
}

void write_cached_table(const std::string& folder) {
  std::ofstream file(folder + "/data.csv");
  file << "area,rooms,price\n";
  for (int64_t i = 0; i < kind_samples; ++i) file << i << "," << i % 5 << "," << 3 * i - i % 5 << "\n";
}

struct KindCase {
  const char* name;
  void (*write)(const std::string& folder);
  std::vector<std::string> keys;
  int64_t classes;  ///< 0: predicts numbers
};

void PrintTo(const KindCase& one, std::ostream* out) {
  *out << one.name;
}

class TeacherCacheKind : public testing::TestWithParam<KindCase> {
 protected:
  void SetUp() override {
    at::manual_seed(4);
    GetParam().write(folder_.path());
    const ResolvedJob job = resolve(plain());
    io::save_safetensors(folder_ / "teacher.safetensors", make_model(job).state_dict());
  }

  Recipe plain() const {
    Recipe result;
    result.eval_split = "none";
    result.batch_size = 8;
    result.num_workers = 0;
    for (std::string setting : GetParam().keys) {
      if (const size_t at = setting.find("FOLDER"); at != std::string::npos) setting.replace(at, 6, folder_.path());
      result.set(setting);
    }
    return result;
  }
  std::vector<double> losses(const std::vector<std::string>& settings) const {
    Recipe result = plain();
    result.teacher = result.model;
    result.teacher_weights = folder_ / "teacher.safetensors";
    result.seed = 2;
    for (const std::string& setting : settings) result.set(setting);
    TrainLoop loop(make_job(result));
    loop.run_steps(8);
    return loop.take_losses();
  }

  TemporaryFolder folder_;
};

}  // namespace

TEST_P(TeacherCacheKind, TeachesTheSameAsTheTeacher) {
  const std::vector<double> teacher = losses({});
  const auto expect_near = [&](const std::vector<double>& found, double rtol) {
    ASSERT_EQ(found.size(), teacher.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], teacher[i], rtol * std::abs(teacher[i])) << i;
  };
  const std::string all = "teacher_cache=" + folder_.path() + "/all", top = "teacher_cache=" + folder_.path() + "/top";
  expect_near(losses({all}), 1e-5);
  expect_near(losses({all}), 1e-5);
  expect_near(losses({all, "num_workers=2"}), 1e-5);
  const int64_t classes = GetParam().classes;
  if (classes == 0) {
    EXPECT_THAT(error_of([&] { losses({top, "teacher_top=1"}); }), HasSubstr("needs class logits"));
    return;
  }
  expect_near(losses({top, c10::str("teacher_top=", classes)}), 1e-4);
  EXPECT_NE(losses({top + "2", "teacher_top=1"}), teacher);
}

INSTANTIATE_TEST_SUITE_P(
    All, TeacherCacheKind,
    testing::Values(KindCase{"tokens",
                             write_cached_texts,
                             {"model=FOLDER/gpt.json", "data=FOLDER/data.jsonl", "tokenizer=bytes", "max_length=24"},
                             260},
                    KindCase{"pixels",
                             write_cached_masks,
                             {"model=test_cached_pixels", "data=FOLDER/data.safetensors", "target=mask",
                              "num_classes=4", "lr=0.01"},
                             4},
                    KindCase{"pairs",
                             write_cached_pairs,
                             {"model=test_cached_pair", "data=FOLDER/data.safetensors", "num_classes=3"},
                             3},
                    KindCase{"numbers",
                             write_cached_table,
                             {"model=tabular_mlp", "data=FOLDER/data.csv", "target=price", "loss=mse", "features=all"},
                             0}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace bellows::train
