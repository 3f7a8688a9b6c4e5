// `bellows bench-model`, and the back ends in `bellows doctor`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BenchedDigits : public TrainedMlp<BenchedDigits> {
 protected:
  static std::string file() {
    const std::string name = path("digits.program");
    if (!std::filesystem::exists(name)) {
      const Outcome made = run_bellows({"export", run(), "--format", "bellows", "--output", name});
      EXPECT_EQ(made.exit_code, 0) << made.err;
    }
    return name;
  }
  static Outcome benched(const std::vector<std::string>& options, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> all{"bench-model", "--seconds", "0.05"};
    all.insert(all.end(), options.begin(), options.end());
    return run_bellows(all, environment);
  }
};

}  // namespace

TEST_F(BenchedDigits, ShowsATable) {
  const Outcome outcome = benched({file(), "--batch-size", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("median"), HasSubstr("program "), HasSubstr("expected"),
                                 HasSubstr("Inputs: float32 [3, 1, 8, 8].")));
  EXPECT_THAT(outcome.err, HasSubstr("Measuring 1 model"));
}

TEST_F(BenchedDigits, WritesJson) {
  // The same file twice: the second row is compared with the first one.
  const Outcome outcome = benched({file(), file(), "--size", "batch=2", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["inputs"][0]["sizes"], nlohmann::json::parse("[2, 1, 8, 8]"));
  ASSERT_EQ(result["models"].size(), 2u);
  const nlohmann::json& second = result["models"][1];
  EXPECT_EQ(second["backend"], "program");
  EXPECT_EQ(second["difference"]["relative"], 0);
  EXPECT_TRUE(second["agrees"].get<bool>());
  EXPECT_GT(second["median_s"].get<double>(), 0);
  EXPECT_GT(second["speedup"].get<double>(), 0);
  EXPECT_TRUE(result["models"][0]["expected"].get<bool>());
}

TEST_F(BenchedDigits, ExplainsWrongOptions) {
  const auto error = [](const std::vector<std::string>& options, int code = 2) {
    const Outcome outcome = benched(options);
    EXPECT_EQ(outcome.exit_code, code) << outcome.out << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error({}), HasSubstr("FILE"));
  EXPECT_THAT(error({file(), "--size", "batch"}), HasSubstr("--size: expected NAME=N, got \"batch\""));
  EXPECT_THAT(error({file(), "--size", "batch=0"}), HasSubstr("expected an integer of at least 1, got \"0\""));
  EXPECT_THAT(error({file(), "--size", "tokens=3"}, 1), HasSubstr("no input has an axis \"tokens\" that may vary"));
  EXPECT_THAT(error({file(), "--input", "y=1x1x8x8"}), HasSubstr("the model has no input \"y\". Inputs: "));
  EXPECT_THAT(error({file(), "--input", "input=1x1x8x8:float3"}), HasSubstr("unknown dtype \"float3\""));
  EXPECT_THAT(error({file(), "--backends", "torch"}, 1), HasSubstr("unknown back end \"torch\". Back ends: libtorch"));
  EXPECT_THAT(error({path("none.program")}, 1), HasSubstr("there is no such file"));
}

TEST_F(BenchedDigits, DamagedFilesAreAFailure) {
  const std::string cut = path("cut.program");
  std::ifstream whole(file(), std::ios::binary);
  std::string bytes(1000, '\0');
  whole.read(bytes.data(), 1000);
  std::ofstream(cut, std::ios::binary) << bytes;
  const Outcome outcome = benched({cut});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("program of " + cut.substr(0, 4)));
}

TEST_F(BenchedDigits, ListsAbsentLibraries) {
  const std::string model = path("empty.onnx");
  std::ofstream(model).flush();
  const std::vector<std::string> none{"BELLOWS_ONNXRUNTIME=/none", "BELLOWS_OPENVINO=/none"};
  const Outcome outcome = benched({model}, none);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("BELLOWS_ONNXRUNTIME=/none"), HasSubstr("BELLOWS_OPENVINO=/none")));
  const nlohmann::json models = nlohmann::json::parse(benched({model, "--json"}, none).out)["models"];
  ASSERT_EQ(models.size(), 3u);
  for (const nlohmann::json& one : models) EXPECT_TRUE(one["absent"].get<bool>()) << one;
}

TEST(Doctor, ListsBackEnds) {
  const std::vector<std::string> none{"BELLOWS_ONNXRUNTIME=/none"};
  EXPECT_THAT(run_bellows({"doctor"}, none).out, AllOf(HasSubstr("Inference back ends:\n"), HasSubstr("onnxruntime ")));
  const nlohmann::json all = nlohmann::json::parse(run_bellows({"doctor", "--json"}, none).out)["backends"];
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(all[0]["name"], "libtorch");
  EXPECT_TRUE(all[0]["available"].get<bool>());
  EXPECT_EQ(all[4]["name"], "onnxruntime");
  EXPECT_FALSE(all[4]["available"].get<bool>());
  EXPECT_THAT(all[4]["missing"].get<std::string>(), HasSubstr("BELLOWS_ONNXRUNTIME=/none cannot be loaded"));
}

}  // namespace bellows::cli
