#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bellows::data {

/// A byte-level BPE (byte-pair encoding) tokenizer like GPT-2's, read from a tokenizer.json.
/// Threads: const functions are thread-safe
class BytePairs {
 public:
  /// Throws: c10::ValueError, see bpe_tokenizer()
  explicit BytePairs(const std::string& path);

  int64_t vocabulary() const { return vocabulary_; }
  const std::vector<int64_t>& before() const { return before_; }  ///< special tokens before each text
  const std::vector<int64_t>& after() const { return after_; }    ///< special tokens after each text
  /// True if token 0 can serve as padding, because it is a special token or is not used in texts.
  bool pads() const { return pads_; }

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
  std::unordered_map<uint64_t, Merge> merges_;  ///< keyed by both tokens
  /// Complete words, which take precedence over merges, keyed by their bytes. Empty unless the file sets ignore_merges.
  std::unordered_map<std::string, uint32_t> whole_words_;
  std::vector<int64_t> before_, after_;
  int64_t vocabulary_ = 0;
  bool prefix_space_ = false, pads_ = false;
};

/// Returns the end of the piece that starts at `at`, according to GPT-2's pattern:
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Throws: c10::ValueError if the text is not UTF-8
size_t end_of_piece(std::string_view text, size_t at);

}  // namespace bellows::data
