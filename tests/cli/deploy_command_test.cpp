// `bellows deploy`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/serve/model_config.h"
#include "bellows/system/file.h"
#include "cli/deploy/deployment.h"
#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DeployedDigits : public TrainedMlp<DeployedDigits> {
 protected:
  static Outcome deploy(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "deploy");
    arguments.insert(arguments.end(), {"--seconds", "0.05"});
    return run_bellows(arguments);
  }
  /// The names of the files next to `name`, to find what an interrupted command left.
  static std::vector<std::string> files_like(const std::string& name) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(fs::path(path(name)).parent_path()))
      if (entry.path().filename().string().starts_with(name)) found.push_back(entry.path().filename());
    return found;
  }
};

}  // namespace

TEST(TritonConfig, HasAllFields) {
  const std::vector<runtime::TensorInfo> inputs{{"x", c10::kFloat, {-1, 1, 8, 8}}, {"ids", c10::kLong, {-1, -1}}},
      outputs{{"y", c10::kFloat, {-1, 10}}};
  std::vector<std::string> warnings;
  const std::string text = triton_config("net", "onnxruntime", 8, false, inputs, outputs);
  const serve::ModelConfig config = serve::parse_model_config(text, "config.pbtxt", warnings);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  EXPECT_EQ(config.name, "net");
  EXPECT_EQ(config.backend, "onnxruntime");
  EXPECT_EQ(config.max_batch_size, 8);
  ASSERT_EQ(config.inputs.size(), 2);
  EXPECT_EQ(config.inputs[0].dims, (std::vector<int64_t>{1, 8, 8}));
  EXPECT_EQ(config.inputs[1].dtype, c10::kLong);
  EXPECT_EQ(config.inputs[1].dims, (std::vector<int64_t>{-1}));
  EXPECT_EQ(config.outputs[0].dims, (std::vector<int64_t>{10}));
  EXPECT_TRUE(config.dynamic_batching);
  EXPECT_TRUE(config.warmups.empty());  // the length of "ids" is unknown
  const serve::ModelConfig plain = serve::parse_model_config(
      triton_config("net", "pytorch", 0, true, {inputs[1]}, outputs), "config.pbtxt", warnings);
  EXPECT_EQ(plain.inputs[0].name, "INPUT__0");
  EXPECT_EQ(plain.inputs[0].dims, (std::vector<int64_t>{-1, -1}));
  EXPECT_EQ(plain.outputs[0].name, "OUTPUT__0");
  EXPECT_FALSE(plain.dynamic_batching);
  const serve::ModelConfig warm =
      serve::parse_model_config(triton_config("net", "", 4, false, {inputs[0]}, outputs), "config.pbtxt", warnings);
  ASSERT_EQ(warm.warmups.size(), 1);
  EXPECT_EQ(warm.warmups[0].batch_size, 1);
  EXPECT_EQ(warm.backend, "");
}

TEST(Deployment, NamesTheReasonOfEachCandidate) {
  const Candidates candidates{.name = "net",
                              .files = {{.dtype = "fp32", .format = "onnx", .problem = "no mapping"},
                                        {.dtype = "int8", .format = "bellows", .problem = "no training data"}}};
  try {
    measure_candidates(candidates, {}, {});
    ADD_FAILURE();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no back end is within the limits"), HasSubstr("fp32 onnx: no mapping"),
                                    HasSubstr("int8 bellows: no training data")));
  }
}

TEST_F(DeployedDigits, WritesTheFastestCandidateWithinTheLimit) {
  const Outcome outcome =
      deploy({run(), "--target", path("models"), "--name", "digits", "--max-drop", "5", "--json", path("deploy.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("fp32 torchscript, libtorch"), HasSubstr("int8 bellows, program"),
                                 HasSubstr("Files to ship"), HasSubstr("bellows serve --model-repository")));
  const Json report = Json::parse(read_text_file(path("deploy.json")));
  EXPECT_EQ(report, Json::parse(read_text_file(path("models/deploy.json"))));
  double best = 1e9, deployed = 0;
  for (const Json& row : report["candidates"]) {
    if (row["accepted"]) best = std::min(best, row["median_s"].get<double>());
    if (row["deployed"]) deployed = row["median_s"];
    if (row["dtype"] == "fp32" && row["accepted"]) {
      EXPECT_LE(report["accuracy"].get<double>() - row["accuracy"].get<double>(), 0.01);
    }
  }
  EXPECT_EQ(deployed, best);
  ASSERT_EQ(report["images"].size(), 2);
  EXPECT_EQ(report["images"][0]["dtype"], "fp32");
  EXPECT_EQ(report["images"][1]["dtype"], "int8");
  for (const Json& image : report["images"]) {
    EXPECT_GT(image["command_bytes"], 0);
    EXPECT_GT(image["library_bytes"], 1 << 20);
    EXPECT_GT(image["model_bytes"], 0);
  }
  EXPECT_GT(report["http_p50_s"], 0);
  EXPECT_TRUE(fs::exists(path("models/digits/config.pbtxt")));
  EXPECT_EQ(files_like("models"), std::vector<std::string>{"models"});
}

TEST_F(DeployedDigits, WritesOnlyFormatsOfTritonOnRequest) {
  const Outcome outcome = deploy({run(), "--target", path("triton"), "--name", "digits", "--triton", "--no-int8"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string config = read_text_file(path("triton/digits/config.pbtxt"));
  EXPECT_THAT(config, ::testing::AnyOf(HasSubstr("backend: \"pytorch\""), HasSubstr("backend: \"onnxruntime\"")));
  EXPECT_THAT(config, AllOf(HasSubstr("max_batch_size: 8"), HasSubstr("dims: [ 10 ]"), HasSubstr("KIND_CPU")));
  EXPECT_TRUE(fs::exists(path("triton/digits/1/model.pt")) || fs::exists(path("triton/digits/1/model.onnx")));
}

TEST_F(DeployedDigits, DeploysAnExportedFile) {
  const std::string file = path("net.program");
  const Outcome made = run_bellows({"export", run(), "--format", "bellows", "--output", file});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Outcome outcome = deploy({file, "--target", path("from-file")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read_text_file(path("from-file/net/1/model.program")), read_text_file(file));
  EXPECT_THAT(read_text_file(path("from-file/net/config.pbtxt")), HasSubstr("name: \"net\""));
}

TEST_F(DeployedDigits, WritesNothingIfNoCandidateIsAccepted) {
  const Outcome none = deploy({run(), "--target", path("none"), "--backends", "tensorrt"});
  EXPECT_EQ(none.exit_code, 1) << none.out;
  EXPECT_FALSE(fs::exists(path("none")));
  const Outcome there = deploy({run(), "--target", run()});
  EXPECT_EQ(there.exit_code, 2);
  EXPECT_THAT(there.err, HasSubstr("exists already"));
  EXPECT_EQ(deploy({run()}).exit_code, 2);
  EXPECT_TRUE(files_like("none").empty());
}

}  // namespace bellows::cli
