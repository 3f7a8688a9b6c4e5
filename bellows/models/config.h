#pragma once

#include <string>

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// Reads the options in a config.json of Hugging Face. Together with load_weights(), it loads a folder that
/// save_pretrained() wrote. Settings that the file lacks keep their default, as in transformers. The caller selects the
/// head.
/// ```
/// BertOptions options = read_bert_config("minilm/config.json");
/// options.head = TextHead::hidden_states;
/// const Model model = bert(options);
/// load_weights(model, io::load_tensors("minilm/model.safetensors"));
/// ```
/// Throws: c10::ValueError if the file does not exist or is not a JSON object, a field has the wrong type, the
///         model_type is another one, or the file uses a setting that these models do not support (relative positions,
///         a decoder, scaling by layer; the message names it)
BertOptions read_bert_config(const std::string& path);
DistilBertOptions read_distilbert_config(const std::string& path);
GptOptions read_gpt_config(const std::string& path);

/// Creates a model entry from the file, by its model_type: a text classifier (bert, distilbert) or a next-token model
/// (gpt2). `make` keeps the vocabulary size of the file, so that its weights fit. It throws if the requested vocabulary
/// is larger.
/// Throws: c10::ValueError like the functions above, or if the model_type is none of these
ModelEntry config_entry(const std::string& path);

}  // namespace bellows::models
