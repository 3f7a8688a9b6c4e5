#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "bellows/data/text/tokenizer.h"
#include "bellows/serve/model_config.h"
#include "bellows/serve/text/bytes_tensor.h"

namespace bellows::serve {

/// Converts the texts of a request to the inputs of a model that reads tokens.
///
/// The model has one input for tokens of the sizes [rows, length], where the length may vary or be fixed. It may also have an attention mask, an input for token
/// types, or one for positions. They are recognized by their names, which contain "mask", "type" or "position". A mask is 1
/// for each token of a text and 0 for padding. Token types are 0. Positions count from 0.
/// Threads: thread-safe
class TextStage {
 public:
  /// Params: inputs – of the model, without the batch axis
  /// Throws: c10::ValueError if the tokenizer cannot be opened, if an input is not an integer tensor with the dims [-1] or
  ///         [N], or if not exactly one input is for tokens
  TextStage(const TextOptions& options, std::vector<TensorSpec> inputs);

  /// Returns the inputs of the model, in its order. The rows are padded with the token 0 to the longest one.
  /// Throws: RequestError with status 400 if a text is not UTF-8, or if texts of different lengths need padding that the
  ///         model cannot ignore
  std::vector<at::Tensor> inputs_of(const BytesTensor& texts) const;

  /// Returns whether the model can ignore padding: it has a mask, or token 0 is padding.
  bool can_pad() const { return has_mask_ || tokenizer_.pads; }
  /// Returns whether all inputs of the model have the same length. Texts are then padded and truncated to it.
  bool fixed_length() const { return length_ > 0; }

 private:
  enum class Role { tokens, mask, types, positions };

  Role role_of(const std::string& name) const;
  std::vector<int64_t> tokens_of(const std::string& text) const;
  at::Tensor input(size_t index, const std::vector<std::vector<int64_t>>& tokens, int64_t length) const;

  std::vector<TensorSpec> inputs_;
  std::vector<Role> roles_{};
  bool has_mask_ = false;
  int64_t length_ = -1;  ///< of the inputs; -1 if it varies
  data::TextTokenizer tokenizer_;
  size_t max_pieces_ = 0;  ///< without special tokens; 0: no limit
};

/// The input with texts that clients see instead of the inputs with tokens.
/// Params: stated – inputs in the configuration; may be empty
/// Throws: c10::ValueError if the configuration states other inputs than one of TYPE_STRING with the dims [1]
TensorSpec text_input(const std::vector<TensorSpec>& stated);

}  // namespace bellows::serve
