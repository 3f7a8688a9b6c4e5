#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/fingerprint.h"
#include "bellows/data/source.h"
#include "bellows/data/text/tokenizer.h"

namespace bellows::data {

struct TextOptions {
  /// The field that holds a text or, without a tokenizer, an integer array [n] of tokens. If empty, find_text_field()
  /// determines the field.
  std::string field = {};
  /// The field with the second text of a pair (see TextTokenizer::encode_pair()). It needs a tokenizer. If empty, each
  /// sample has one text.
  std::string pair_field = {};
  std::optional<TextTokenizer> tokenizer = {};
  /// Longer texts are truncated to this number of tokens, including special tokens; 0: no limit.
  int64_t max_tokens = 0;
  int64_t vocabulary = 0;  ///< size of the vocabulary; a sample with tokens outside it is a bad sample; 0: not checked
  bool labels = true;      ///< if false, labels are left out
};

/// Counts of the texts that have been read so far. Each text is counted once.
struct TextCounts {
  int64_t texts = 0, cut = 0;  ///< number of texts; number of truncated texts
};

/// A source whose samples have a text and its label. The text is an int64 array "tokens" [n] with at least one token.
/// A pair of texts also has "token_type_ids" [n], which are 0 for the first text and 1 for the second.
/// The fields "label", "cls" and "json" are unchanged, and all other fields are left out. Use the source with
/// Dataset::pad("tokens").
class TextSource final : public Source, public Derived {
 public:
  using Source::read;

  /// Throws: c10::ValueError if `source` is null, if max_tokens leaves no space for text between the special tokens, or
  ///         if the first samples do not have the field
  TextSource(SourcePtr source, TextOptions options);

  int64_t size() const override { return source_->size(); }
  /// Throws: c10::ValueError if a text has no tokens or is not UTF-8, if the field is missing, or if a token is outside
  ///         the vocabulary; the message names the sample and its location
  void read(int64_t index, Sample& sample) const override;
  int64_t id_bound() const override { return source_->id_bound(); }
  std::string describe() const override { return source_->describe(); }
  bool prefetch(int64_t index) const override { return source_->prefetch(index); }
  std::vector<int64_t> block_starts() const override { return source_->block_starts(); }

  const SourcePtr& origin() const override { return origin_; }
  const TextOptions& options() const { return options_; }
  /// Returns the number of tokens of each sample. The number is 0 for samples that cannot be read.
  /// Cost: tokenizes all samples once, in all threads of libtorch; store the result
  std::vector<int64_t> lengths() const;
  TextCounts counts() const;

 private:
  void read_pair(Sample& sample) const;
  void take_tokens(const Field& field, const Sample& sample, std::vector<int64_t>& tokens) const;
  void check_vocabulary(const Field& field, const Sample& sample, const std::vector<int64_t>& tokens) const;
  void mark(int64_t id, bool cut) const;

  SourcePtr origin_, source_;
  TextOptions options_;
  std::string tokens_field_;
  int64_t most_pieces_ = 0;
  std::unique_ptr<std::atomic<uint8_t>[]> seen_;  ///< state of each id – 0: not read yet, 1: complete, 2: truncated
};

/// Returns the name of the field that holds a sample's text. This is "txt" or "text" if it exists, otherwise the only
/// text that is not a label. With `tokens`, returns the name of the field that holds tokens. This is "input_ids" or
/// "tokens" if it exists, otherwise the only list of integers.
/// Throws: c10::ValueError if there is no such field or more than one (the message lists the fields)
std::string find_text_field(const Sample& sample, bool tokens);

}  // namespace bellows::data
