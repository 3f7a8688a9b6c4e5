#pragma once

#include <cstdint>
#include <string>

namespace bellows::train {

/// The sizes of a transformer, from which the simulator computes operations, bytes and parameters.
struct TransformerShape {
  std::string name;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  ///< heads of keys and values; fewer than `heads` with grouped-query attention
  int64_t head_width = 0;
  int64_t inner = 0;  ///< width between the linear layers that follow the attention
  int64_t vocabulary = 0;
  int64_t positions = 0;          ///< maximum length of a text
  bool gated = false;             ///< three matrices follow the attention, as in SwiGLU; otherwise two
  bool causal = true;             ///< a token attends to earlier tokens only
  bool predicts_tokens = true;    ///< logits for each token; otherwise for each text
  bool tied = true;               ///< the output layer has the weights of the token embedding
  bool learned_positions = true;  ///< position embedding with weights
  bool biases = true;             ///< linear layers and norms have biases
  bool dropout = true;

  int64_t query_width() const { return heads * head_width; }
  int64_t kv_width() const { return kv_heads * head_width; }
  int64_t layer_matrices() const;    ///< elements of the matrices of one layer
  int64_t layer_parameters() const;  ///< also norms and biases
  int64_t embedding_parameters() const;
  int64_t head_parameters() const;  ///< of the output layer, 0 if it is tied
  /// Number of parameters. Exact for GPT-2 and Llama; without the segments and the pooler of BERT.
  int64_t parameters() const;
};

/// Returns the shape of a model.
/// Params: model – a registered name such as gpt2, or a config.json of Hugging Face with the model_type bert, distilbert,
///                 gpt2, llama, mistral or qwen2
/// Throws: c10::ValueError if there is no such model, if it is not a transformer, or if the file cannot be used
TransformerShape transformer_shape(const std::string& model);

}  // namespace bellows::train
