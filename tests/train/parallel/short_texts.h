#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bellows/core/seed.h"
#include "tests/cli/process.h"

namespace bellows::train {

/// A BERT with dropout that classifies 236 short texts, as files for `bellows train`. With batches of 24, the last batch
/// of an epoch has 20 texts.
class ShortTexts {
 public:
  explicit ShortTexts(const cli::Scratch& scratch)
      : data_(scratch / "set"), model_(scratch / "bert.json"), vocabulary_(scratch / "vocab.txt") {
    std::filesystem::create_directories(data_);
    std::ofstream data(scratch / "set/train.jsonl"), vocabulary(vocabulary_);
    vocabulary << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
    for (const char* word : words) vocabulary << word << "\n";
    RandomStream drawn(7);
    for (int i = 0; i < 236; ++i) {
      data << R"({"text": ")";
      const uint64_t count = 2 + drawn.below(9), label = drawn.below(2);
      for (uint64_t word = 0; word < count; ++word) data << words[2 * drawn.below(4) + label] << " ";
      data << R"(end", "label": ")" << (label ? "yes" : "no") << "\"}\n";
    }
    std::ofstream(model_) << R"({"model_type": "bert", "vocab_size": 14, "hidden_size": 32, "num_hidden_layers": 2,
               "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16,
               "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})";
  }

  const std::string& data() const { return data_; }
  /// The keys of a recipe.
  std::vector<std::string> recipe() const { return {"model=" + model_, "tokenizer=" + vocabulary_}; }

 private:
  static constexpr const char* words[] = {"red",   "blue",  "stone", "river", "cloud",
                                          "seven", "paper", "green", "end",   "other"};
  const std::string data_, model_, vocabulary_;
};

}  // namespace bellows::train
