#pragma once

namespace bellows::models {

/// The head on top of a text transformer, and the class of Hugging Face with the same parameter names.
enum class TextHead {
  hidden_states,  ///< BertModel, DistilBertModel: [N, T, width] of the last layer
  pooled,         ///< BertModel: [N, width], the first token after its dense layer and tanh
  classifier,     ///< …ForSequenceClassification: logits [N, num_labels]
  masked_lm,      ///< …ForMaskedLM: logits [N, T, vocab_size]; the decoder shares the embedding's weight
  /// Same parameters; returns the input of the decoder [N, T, width], for nn::linear_cross_entropy.
  masked_lm_hidden,
};

}  // namespace bellows::models
