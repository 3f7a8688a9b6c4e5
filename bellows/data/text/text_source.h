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
  /// A text, or with no tokenizer an integer array [n] of tokens; "": what find_text_field() finds in a sample.
  std::string field = {};
  std::optional<TextTokenizer> tokenizer = {};
  int64_t most_tokens = 0;  ///< longer texts are cut behind so many, marks counted; 0: none is cut
  int64_t vocabulary = 0;   ///< a token that is not below it makes a bad sample; 0: not checked
  bool labels = true;       ///< hand them on; false: they do not matter
};

/// Texts that were read so far, each counted once.
struct TextCounts {
  int64_t texts = 0, cut = 0;
};

/// Samples of a text and its label: an int64 array "tokens" [n], of one token at least, and what there is of "label", "cls" and
/// "json"; other fields are left out. For Dataset::pad("tokens").
class TextSource final : public Source, public Derived {
 public:
  using Source::read;

  /// Throws: c10::ValueError – null, most_tokens that leave no room between the marks, no such field in the leading samples
  TextSource(SourcePtr source, TextOptions options);

  int64_t size() const override { return source_->size(); }
  /// Throws: c10::ValueError – a text of no token, that is no UTF-8, no such field, tokens outside of the vocabulary: which
  ///         sample, where
  void read(int64_t index, Sample& sample) const override;
  int64_t id_bound() const override { return source_->id_bound(); }
  std::string describe() const override { return source_->describe(); }
  bool prefetch(int64_t index) const override { return source_->prefetch(index); }
  std::vector<int64_t> block_starts() const override { return source_->block_starts(); }

  const SourcePtr& origin() const override { return origin_; }
  const TextOptions& options() const { return options_; }
  /// Tokens of each sample as read; 0 of those that cannot be.
  /// Cost: tokenizes all once, in all of libtorch's threads; keep the result
  std::vector<int64_t> lengths() const;
  TextCounts counts() const;

 private:
  void take_tokens(const Field& field, const Sample& sample, std::vector<int64_t>& tokens) const;
  void mark(int64_t id, bool cut) const;

  SourcePtr origin_, source_;
  TextOptions options_;
  std::string tokens_field_;
  int64_t most_pieces_ = 0;
  std::unique_ptr<std::atomic<uint8_t>[]> seen_;  ///< of each id: 0 not yet, 1 whole, 2 cut
};

/// The field that holds a sample's text: "txt" or "text" where it has one, else the only text that is no label; or its tokens:
/// "input_ids" or "tokens", else the only list of integers.
/// Throws: c10::ValueError – there is none, or several: which fields there are
std::string find_text_field(const Sample& sample, bool tokens);

}  // namespace bellows::data
