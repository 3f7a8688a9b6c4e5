#pragma once

#include <ATen/core/Tensor.h>

namespace bellows::models {

/// What stands on top of a transformer that reads text, and which of Hugging Face's classes its names are of.
enum class TextHead {
  hidden_states,  ///< BertModel, DistilBertModel: [N, T, width] of the last layer
  pooled,         ///< BertModel: [N, width], of the first token through its dense layer and tanh
  classifier,     ///< …ForSequenceClassification: scores [N, num_labels]
  masked_lm,      ///< …ForMaskedLM: scores of all words [N, T, vocab_size]; the decoder's weight is the embedding's
  masked_lm_hidden,  ///< the same parameters: what the decoder would read [N, T, width], for nn::linear_cross_entropy
};

/// Token ids, attention mask and token types as the one tensor that a model takes.
/// Shapes: each int64 [N, T]; undefined mask: ones; undefined types: none → [N, 2, T] or [N, 3, T]
/// Throws: c10::ValueError – not int64 [N, T], or not of the same shape
at::Tensor pack_tokens(const at::Tensor& ids, const at::Tensor& attention_mask, const at::Tensor& token_types = {});

}  // namespace bellows::models
