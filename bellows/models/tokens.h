#pragma once

namespace bellows::models {

/// The head on top of a text transformer. Each comment names the Hugging Face class with the same parameter names.
enum class TextHead {
  hidden_states,  ///< BertModel, DistilBertModel: output of the last layer, [N, T, width]
  pooled,         ///< BertModel: the first token after a dense layer and tanh, [N, width]
  classifier,     ///< …ForSequenceClassification: logits [N, num_labels]
  masked_lm,      ///< …ForMaskedLM: logits [N, T, vocab_size]; the decoder shares the weight of the embedding
  /// Like masked_lm, with the same parameters, but returns the input of the decoder, [N, T, width], for
  /// nn::linear_cross_entropy.
  masked_lm_hidden,
};

}  // namespace bellows::models
