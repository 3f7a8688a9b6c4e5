#pragma once

#include <string>

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// The options that a config.json of Hugging Face's describes: with them and load_weights() a folder that save_pretrained()
/// wrote becomes a model here. What the file does not say keeps its default, as there; what stands on top is the caller's choice.
/// ```
/// BertOptions options = read_bert_config("minilm/config.json");
/// options.head = TextHead::hidden_states;
/// const Model model = bert(options);
/// load_weights(model, io::load_tensors("minilm/model.safetensors"));
/// ```
/// Throws: c10::ValueError – no such file, no JSON object, a field of another kind than it should be, another model_type, or
///         a setting that these models do not have (relative positions, a decoder, scaling by layer), by name
BertOptions read_bert_config(const std::string& path);
DistilBertOptions read_distilbert_config(const std::string& path);
GptOptions read_gpt_config(const std::string& path);

/// The file as an entry, by its model_type: a classifier of texts (bert, distilbert), or a model of the next token (gpt2). `make`
/// keeps the file's number of words, for the sake of its weights, and refuses to make a model that should know more.
/// Throws: c10::ValueError – as those above; a model_type that is none of these
ModelEntry config_entry(const std::string& path);

}  // namespace bellows::models
