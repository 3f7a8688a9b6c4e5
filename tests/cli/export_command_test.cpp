// `bellows export`, and the files that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "process.h"
#include "trained_folder.h"

namespace bellows::cli {

namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ExportedDigits : public TrainedMlp<ExportedDigits> {
 protected:
  static Outcome exported(const std::string& file, const std::vector<std::string>& options) {
    std::vector<std::string> all{"export", run(), "--output", path(file)};
    all.insert(all.end(), options.begin(), options.end());
    return run_bellows(all);
  }
};

}  // namespace

TEST_F(ExportedDigits, WritesACompiledProgram) {
  const Outcome text = exported("digits.program", {"--format", "bellows"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("Wrote "), HasSubstr("float32 [batch, "), HasSubstr("dynamic axis batch")));
  const Outcome outcome = exported("digits.program", {"--format", "bellows", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json report = Json::parse(outcome.out);
  EXPECT_EQ(report.at("bytes"), std::filesystem::file_size(path("digits.program")));
  EXPECT_EQ(report.at("inputs").at(0).at("dtype"), "float32");
  EXPECT_EQ(report.at("outputs").at(0).at("shape"), Json({"batch", "10"}));
}

TEST_F(ExportedDigits, WritesFilesOfPytorch) {
  for (const char* format : {"pt2", "torchscript"}) {
    const std::string file = std::string("digits.") + format;
    const Outcome text = exported(file, {"--format", format});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out, AllOf(HasSubstr("Wrote "), HasSubstr("float32 [batch, "), HasSubstr("largest difference")));
    const Outcome outcome = exported(file, {"--format", format, "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json report = Json::parse(outcome.out);
    EXPECT_EQ(report.at("bytes"), std::filesystem::file_size(path(file)));
    EXPECT_EQ(report.at("outputs").at(0).at("shape"), Json({"batch", "10"}));
    EXPECT_GE(report.at("check").at("calls"), 3);
    EXPECT_LT(report.at("check").at("largest_difference"), 1e-5);
    EXPECT_GT(report.at("parameters"), 0);
  }
}

/// The program stays the same; only the weights are written again.
TEST_F(ExportedDigits, CopiesProgramsOfTorchExport) {
  const std::string program = BELLOWS_SOURCE_DIR "/tests/goldens/exported/cnn.pt2";
  const Outcome outcome = run_bellows(
      {"export", "--model", program, "--set", "num_classes=5", "--format", "pt2", "--output", path("copy.pt2")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("Wrote "), HasSubstr("cnn.pt2 with the trained weights")));
  EXPECT_EQ(std::filesystem::exists(path("copy.pt2")), true);
}

TEST_F(ExportedDigits, WritesOnnxWhereItIsAvailable) {
  const Outcome outcome = exported("digits.onnx", {"--json"});
  if (outcome.exit_code != 0) {
    EXPECT_THAT(outcome.err, HasSubstr("libonnx-dev"));
    return;
  }
  const Json report = Json::parse(outcome.out);
  EXPECT_EQ(report.at("opset"), 17);
  EXPECT_EQ(report.at("inputs").at(0).at("shape").at(0), "batch");
  EXPECT_EQ(report.at("bytes"), std::filesystem::file_size(path("digits.onnx")));
  const Json& check = report.at("check");  // the libraries are optional
  if (check.at("library") == "") {
    EXPECT_THAT(outcome.err, HasSubstr("The file will not be run"));
  } else {
    EXPECT_GE(check.at("calls"), 3);
    EXPECT_LT(check.at("largest_difference"), 1e-5);
  }
  const Outcome unchecked = exported("digits.onnx", {"--no-check"});
  EXPECT_THAT(unchecked.out, HasSubstr("not checked"));
  EXPECT_THAT(unchecked.err, Not(HasSubstr("will not be run")));
}

TEST_F(ExportedDigits, WrongOptionsAreErrors) {
  const auto error_with = [](const std::vector<std::string>& options) {
    const Outcome outcome = exported("no-such-folder/x", options);
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.err;
  };
  EXPECT_THAT(error_with({"--format", "bellows"}), HasSubstr("no-such-folder"));
  EXPECT_THAT(error_with({"--format", "pt3"}), HasSubstr("expected one of onnx, pt2, torchscript, bellows"));
  EXPECT_THAT(exported("x", {"--format", "bellows", "--external-data-above", "1MB"}).err,
              HasSubstr("requires --format onnx"));
  EXPECT_THAT(exported("x", {"--format", "bellows", "--no-check"}).err, HasSubstr("requires --format onnx, pt2"));
  EXPECT_THAT(exported("x", {"--format", "bellows", "--dynamic", "9=far"}).err,
              HasSubstr("no input of the model has an axis 9"));
  EXPECT_FALSE(std::filesystem::exists(path("x")));
}

}  // namespace bellows::cli
