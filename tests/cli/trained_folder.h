#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "process.h"

namespace bellows::cli {

/// Tests that share a folder with a run of one epoch on the digits. `Suite::settings()` returns further arguments of
/// `bellows train`.
template <class Suite>
class TrainedFolder : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<Scratch>();
    std::vector<std::string> arguments = {"train", "--data", digits(), "--set", "epochs=1", "--out", run(), "--json"};
    for (const std::string& setting : Suite::settings()) arguments.push_back(setting);
    const Outcome outcome = run_bellows(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    result_ = nlohmann::json::parse(outcome.out);
  }
  static void TearDownTestSuite() { scratch_.reset(); }
  static std::string path(const std::string& name) { return *scratch_ / name; }
  static std::string run() { return path("run"); }
  /// What `bellows train --json` printed.
  static const nlohmann::json& result() { return result_; }

 private:
  static inline std::unique_ptr<Scratch> scratch_;
  static inline nlohmann::json result_;
};

/// Writes 20 texts with two labels to train.jsonl, and trains a small BERT on them. The run is in the folder `run`.
inline void train_on_texts(const Scratch& folder) {
  std::ofstream rows(folder / "train.jsonl");
  for (int i = 0; i < 20; ++i) rows << R"({"text": "word )" << i << R"(", "label": )" << i % 2 << "}\n";
  rows.close();
  std::ofstream(folder / "config.json")
      << R"({"model_type": "bert", "vocab_size": 259, "hidden_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40})";
  const Outcome run = run_bellows({"train", "--data", folder / "train.jsonl", "--model", folder / "config.json",
                                   "--set", "tokenizer=bytes", "--set", "epochs=1", "--out", folder / "run"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
}

/// The settings of most suites: an MLP.
template <class Suite>
class TrainedMlp : public TrainedFolder<Suite> {
 public:
  static std::vector<std::string> settings() { return {"--model", "mlp"}; }
};

}  // namespace bellows::cli
