#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bellows::data {

/// A byte-level BPE tokenizer, loaded from a tokenizer.json in GPT-2's format.
/// Threads: const functions are thread-safe
class BytePairs {
 public:
  /// Throws: c10::ValueError; see bpe_tokenizer()
  explicit BytePairs(const std::string& path);

  int64_t vocabulary() const { return vocabulary_; }
  const std::vector<int64_t>& before() const { return before_; }  ///< special tokens around each text
  const std::vector<int64_t>& after() const { return after_; }
  bool pads() const { return pads_; }  ///< token 0 is a special token, not a piece of text

  /// Throws: c10::ValueError if the text is not UTF-8
  std::vector<int64_t> operator()(std::string_view text) const;

 private:
  struct Merge {
    uint32_t rank = 0, result = 0;
  };
  class File;

  void add_word(std::string_view bytes, std::vector<int64_t>& tokens) const;
  const Merge* merge_of(uint32_t left, uint32_t right) const;

  std::array<uint32_t, 256> byte_tokens_{};
  std::unordered_map<uint64_t, Merge> merges_;             ///< keyed by both tokens
  std::unordered_map<std::string, uint32_t> whole_words_;  ///< keyed by their bytes, if they take precedence
  std::vector<int64_t> before_, after_;
  int64_t vocabulary_ = 0;
  bool prefix_space_ = false, pads_ = false;
};

/// The end of the piece that starts at `at`, by GPT-2's pattern
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Throws: c10::ValueError if the text is not UTF-8
size_t end_of_piece(std::string_view text, size_t at);

}  // namespace bellows::data
