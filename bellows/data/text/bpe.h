#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bellows::data {

/// Byte-level BPE: what a tokenizer.json of GPT-2's kind says.
/// Threads: reading is safe
class BytePairs {
 public:
  /// Throws: c10::ValueError – see bpe_tokenizer()
  explicit BytePairs(const std::string& path);

  int64_t vocabulary() const { return vocabulary_; }
  const std::vector<int64_t>& before() const { return before_; }  ///< marks around each text
  const std::vector<int64_t>& after() const { return after_; }
  bool pads() const { return pads_; }  ///< token 0 is a mark, not a piece of text

  /// Throws: c10::ValueError – no UTF-8
  std::vector<int64_t> operator()(std::string_view text) const;

 private:
  struct Merge {
    uint32_t rank = 0, result = 0;
  };
  class File;

  void add_word(std::string_view bytes, std::vector<int64_t>& tokens) const;
  const Merge* merge_of(uint32_t left, uint32_t right) const;

  std::array<uint32_t, 256> byte_tokens_{};
  std::unordered_map<uint64_t, Merge> merges_;             ///< by both tokens
  std::unordered_map<std::string, uint32_t> whole_words_;  ///< by their bytes, where these go before merges
  std::vector<int64_t> before_, after_;
  int64_t vocabulary_ = 0;
  bool prefix_space_ = false, pads_ = false;
};

/// Where the piece ends that begins at `at`, by GPT-2's pattern
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Throws: c10::ValueError – no UTF-8
size_t end_of_piece(std::string_view text, size_t at);

}  // namespace bellows::data
