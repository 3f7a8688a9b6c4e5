// Weights by address: the files of a repository, config.json as the model, and what is refused.
#include "bellows/models/pretrained/pretrained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bellows/data/text/tokenizer.h"
#include "bellows/io/tensors/torch_file.h"
#include "bellows/models/config.h"
#include "bellows/models/weights.h"
#include "bellows/system/file.h"
#include "bellows/train/inference/trained_model.h"
#include "bellows/train/resolved_job.h"
#include "tests/models/golden.h"
#include "tests/support/captured_log.h"
#include "tests/support/errors.h"
#include "tests/support/http_server.h"
#include "tests/support/scoped_variable.h"
#include "tests/train/support.h"

namespace bellows::train {

namespace {

namespace golden = models::golden;
using bellows::testing::HttpServer;
using bellows::testing::ScopedVariable;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A server that is the Hub, with repositories in the organization "org".
class Pretrained : public ::testing::Test {
 protected:
  void put(const std::string& repository, const std::string& file, const std::string& content) {
    const std::string etag = c10::str("\"v", ++versions_, "\"");
    server_.put_file("/org/" + repository + "/resolve/main/" + file, {.content = content, .etag = etag});
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  /// The bytes of a safetensors file.
  std::string file_of(const NamedTensors& tensors) const {
    io::save_safetensors(path("written.safetensors"), tensors);
    return read_text_file(path("written.safetensors"));
  }
  void put_distilbert() {
    put("tiny", "config.json", read_text_file(golden::path("distilbert_classifier.config.json")));
    put("tiny", "model.safetensors", read_text_file(golden::path("distilbert_classifier.safetensors")));
  }
  static NamedTensors two_tensors() {
    return {{"a", torch::arange(6).to(at::kFloat)}, {"b", torch::full({2, 2}, 7.0)}};
  }
  static void expect_tensors(const NamedTensors& found, const NamedTensors& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const auto same = std::ranges::find_if(found, [&](const auto& item) { return item.first == name; });
      ASSERT_NE(same, found.end()) << name;
      EXPECT_TRUE(torch::equal(same->second, tensor)) << name;
    }
  }

  int versions_ = 0;
  TemporaryFolder folder_;
  HttpServer server_;
  ScopedVariable cache_{"BELLOWS_CACHE", path("cache")}, endpoint_{"HF_ENDPOINT", server_.url()},
      token_{"HF_TOKEN", ""}, offline_{"HF_HUB_OFFLINE", ""};
};

std::string pretrained_error(const std::string& address) {
  return message_of([&] { models::load_pretrained(address); });
}

/// The state of transformers' ResNet, with weights from the formula.
NamedTensors transformers_state(const nlohmann::ordered_json& expected) {
  NamedTensors state, parameters;
  for (const auto& item : expected["state"]) {
    const auto name = item[0].get<std::string>();
    const auto sizes = item[1].get<std::vector<int64_t>>();
    const bool counts = name.ends_with("num_batches_tracked"), variance = name.ends_with("running_var");
    state.emplace_back(name, torch::full(sizes, variance ? 1 : 0, counts ? at::kLong : at::kFloat));
    if (!counts && !variance && !name.ends_with("running_mean")) parameters.push_back(state.back());
  }
  models::set_formula_weights(parameters);
  return state;
}

}  // namespace

TEST_F(Pretrained, TheFirstUsualFileIsLoaded) {
  const NamedTensors tensors = two_tensors();
  io::torch_save(path("old.bin"), tensors);
  put("name", "pytorch_model.bin", read_text_file(path("old.bin")));
  expect_tensors(models::load_pretrained("hf://org/name"), tensors);
  put("name", "model.safetensors", file_of({{"newer", torch::ones({3})}}));
  expect_tensors(models::load_pretrained("hf://org/name"), {{"newer", torch::ones({3})}});
  expect_tensors(models::load_pretrained("hf://org/name/pytorch_model.bin"), tensors);
  expect_tensors(models::load_pretrained(server_.url("/org/name/resolve/main/pytorch_model.bin")), tensors);
  expect_tensors(models::load_pretrained(path("old.bin")), tensors);
  EXPECT_THAT(pretrained_error("hf://org/none"),
              AllOf(HasSubstr("hf://org/none: the server has none of the files model.safetensors, "),
                    HasSubstr("pytorch_model.bin.index.json"), HasSubstr("name a file: hf://org/none/FILE")));
}

TEST_F(Pretrained, ShardedFilesAreLoadedByTheirIndex) {
  const NamedTensors tensors = two_tensors();
  const std::string index =
      R"({"metadata": {"total_size": 40}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})";
  put("name", "model.safetensors.index.json", index);
  put("name", "one.safetensors", file_of({tensors[0], {"unlisted", torch::ones({1})}}));
  put("name", "two.safetensors", file_of({tensors[1]}));
  expect_tensors(models::load_pretrained("hf://org/name"), tensors);
  expect_tensors(models::load_pretrained(server_.url("/org/name/resolve/main/model.safetensors.index.json")), tensors);
  write_text_file(path("model.safetensors.index.json"), index);
  for (const auto& [name, file] : {std::pair(0, "one.safetensors"), {1, "two.safetensors"}})
    io::save_safetensors(path(file), {tensors[static_cast<size_t>(name)]});
  expect_tensors(models::load_pretrained(path("model.safetensors.index.json")), tensors);
}

TEST_F(Pretrained, BadIndexesAndFilesAreNamed) {
  const auto error_with_index = [&](const std::string& index) {
    put("name", "model.safetensors.index.json", index);
    return pretrained_error("hf://org/name");
  };
  put("name", "one.safetensors", file_of(two_tensors()));
  EXPECT_THAT(error_with_index("[1]"), HasSubstr("expected a JSON object with an object \"weight_map\""));
  EXPECT_THAT(error_with_index("{"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_with_index(R"({"weight_map": {}})"), HasSubstr("names no tensors"));
  for (const char* file : {"\"../x.safetensors\"", "\"/etc/passwd\"", "\"..\"", "\"\"", "7", "null"})
    EXPECT_THAT(error_with_index(c10::str(R"({"weight_map": {"a": )", file, "}}")),
                HasSubstr("expected the name of a file in the same folder for \"a\", found "));
  EXPECT_THAT(error_with_index(R"({"weight_map": {"c": "one.safetensors"}})"),
              AllOf(HasSubstr("hf://org/name/one.safetensors: expected the tensor \"c\""), HasSubstr("it is missing")));
  EXPECT_THAT(error_with_index(R"({"weight_map": {"c": "absent.safetensors"}})"),
              AllOf(HasSubstr("hf://org/name/absent.safetensors"), HasSubstr("status 404")));
  put("broken", "model.safetensors", "no tensors at all, only text");
  EXPECT_THAT(pretrained_error("hf://org/broken"), HasSubstr("hf://org/broken/model.safetensors: "));
  EXPECT_THAT(pretrained_error("hf://org/name#sha256=" + std::string(64, 'a')),
              HasSubstr("a checksum needs the address of one file"));
}

TEST_F(Pretrained, TheRepositorysConfigChoosesTheModel) {
  put_distilbert();
  Recipe recipe;
  recipe.weights = "hf://org/tiny";
  recipe.num_classes = 3;
  const ResolvedJob job = resolve_model(recipe);
  EXPECT_EQ(job.recipe.model, "hf://org/tiny/config.json");
  EXPECT_EQ(job.recipe.optimizer, "adamw") << "the default of a text model";
  const Model model = make_model(job);
  const Model expected = models::model_entry(golden::path("distilbert_classifier.config.json")).make(3, 30);
  models::load_weights(expected, io::load_tensors(golden::path("distilbert_classifier.safetensors")));
  expect_tensors(model.state_dict(), expected.state_dict());
  expect_tensors(load_trained(recipe, "").model.state_dict(), expected.state_dict());
  Recipe plain;
  plain.num_classes = 3;
  expect_tensors(load_trained(plain, "hf://org/tiny/model.safetensors").model.state_dict(), expected.state_dict());
}

TEST_F(Pretrained, ANamedModelIsKept) {
  Recipe recipe;
  recipe.weights = "hf://org/name@v1/weights/model.safetensors";
  EXPECT_EQ(with_pretrained_model(recipe).model, "hf://org/name@v1/weights/config.json");
  recipe.model = "resnet18";
  EXPECT_EQ(with_pretrained_model(recipe).model, "resnet18");
  recipe.model = Recipe{}.model;
  recipe.weights = "https://host/model.safetensors";
  EXPECT_EQ(with_pretrained_model(recipe).model, Recipe{}.model) << "without config.json";
}

TEST_F(Pretrained, UnknownModelsAreRefusedWithAListOfThoseThatExist) {
  const auto error_of_config = [&](const std::string& config) {
    put("name", "config.json", config);
    Recipe recipe;
    recipe.weights = "hf://org/name";
    recipe.num_classes = 2;
    return message_of([&] { resolve_model(recipe); });
  };
  EXPECT_THAT(
      error_of_config(R"({"model_type": "llama"})"),
      AllOf(HasSubstr("config hf://org/name/config.json: expected model_type to be bert, distilbert, gpt2 or resnet"),
            HasSubstr("resnet18, resnet34, resnet50, resnet101, resnet152, found \"llama\""),
            HasSubstr("torch.export")));
  EXPECT_THAT(error_of_config(R"({"architecture": "convnext"})"), HasSubstr("found architecture \"convnext\""));
  EXPECT_THAT(
      error_of_config(R"({"model_type": "resnet", "depths": [1, 1, 1, 1], "hidden_sizes": [256, 512, 1024, 2048]})"),
      AllOf(HasSubstr("expected layer_type and depths of one of resnet18"), HasSubstr("[1, 1, 1, 1]")));
  EXPECT_THAT(error_of_config(R"({"model_type": "resnet", "depths": [3, 4, 6, 3], "hidden_sizes": [8, 16, 32, 64]})"),
              HasSubstr("expected hidden_sizes = "));
  EXPECT_THAT(error_of_config(R"({"model_type": "resnet", "depths": "3"})"), HasSubstr("depths to be a list"));
  EXPECT_THAT(error_of_config("[]"), HasSubstr("expected a JSON object"));
}

// Transformers' logits are sums of up to 4608 products in another order: 1e-4 is far above the rounding of float32 here.
TEST_F(Pretrained, ResNetsOfTransformersGiveTheLogitsOfPython) {
  const auto content = golden::read("pretrained.json");
  for (const char* name : {"resnet18", "resnet50"}) {
    SCOPED_TRACE(name);
    put(name, "config.json", content[name]["config"].dump());
    put(name, "model.safetensors", file_of(transformers_state(content[name])));
    Recipe recipe;
    recipe.weights = c10::str("hf://org/", name);
    recipe.num_classes = 10;
    const Model model = make_model(resolve_model(recipe));
    model.eval();
    const at::Tensor logits = model.forward(models::formula_uniform("input0", {2, 3, 64, 64}).to(at::kFloat));
    const auto expected = torch::tensor(content[name]["logits"].get<std::vector<double>>()).to(at::kFloat);
    EXPECT_TRUE(torch::allclose(logits.flatten(), expected, 1e-4, 1e-4))
        << (logits.flatten() - expected).abs().max().item<double>();
  }
}

TEST_F(Pretrained, AnotherNumberOfClassesKeepsTheOtherWeights) {
  put("timm", "config.json", R"({"architecture": "resnet18", "num_classes": 10})");
  const Model source = models::model_entry("resnet18").make(10, 3);
  put("timm", "model.safetensors", file_of(source.state_dict()));
  Recipe recipe;
  recipe.weights = "hf://org/timm";
  recipe.num_classes = 7;
  const CapturedLog log;
  const NamedTensors state = make_model(resolve_model(recipe)).state_dict(), given = source.state_dict();
  EXPECT_THAT(log.text(), AllOf(HasSubstr("hf://org/timm has another number of classes"),
                                HasSubstr("fc.weight: file [10, 512], model [7, 512]")));
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].first.starts_with("fc.")) continue;
    EXPECT_TRUE(torch::equal(state[i].second, given[i].second)) << state[i].first;
  }
}

TEST_F(Pretrained, WeightsOfAnotherModelAreNamed) {
  put("name", "config.json", R"({"architecture": "resnet18"})");
  put("name", "model.safetensors", file_of(two_tensors()));
  Recipe recipe;
  recipe.weights = "hf://org/name";
  recipe.num_classes = 10;
  EXPECT_THAT(message_of([&] { make_model(resolve_model(recipe)); }),
              AllOf(HasSubstr("weights = hf://org/name: "), HasSubstr("conv1.weight")));
  recipe.weights = "hf://org";
  EXPECT_THAT(message_of([&] { resolve_model(recipe); }), HasSubstr("expected hf://ORG/NAME"));
}

TEST_F(Pretrained, TokenizersHaveAddresses) {
  put_distilbert();
  put("tiny", "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nyes\nno\n");
  Recipe recipe;
  recipe.weights = "hf://org/tiny";
  recipe.tokenizer = "hf://org/tiny/vocab.txt";
  recipe.num_classes = 3;
  const ResolvedJob job = resolve_model(recipe);
  ASSERT_TRUE(job.tokenizer.has_value());
  EXPECT_THAT(job.tokenizer->encode("yes no"), ::testing::ElementsAre(2, 4, 5, 3));
}

}  // namespace bellows::train
