#pragma once

#include <string>

#include "bellows/models/bert.h"
#include "bellows/models/distilbert.h"
#include "bellows/models/gpt.h"
#include "bellows/models/registry.h"

namespace bellows::models {

/// Reads the options from a Hugging Face config.json. Together with load_weights(), it loads a folder that
/// save_pretrained() wrote. Options that the file does not contain keep their defaults, as in transformers. The caller
/// selects the head.
/// ```
/// BertOptions options = read_bert_config("minilm/config.json");
/// options.head = TextHead::hidden_states;
/// const Model model = bert(options);
/// load_weights(model, io::load_tensors("minilm/model.safetensors"));
/// ```
/// Throws: c10::ValueError if the file does not exist or is not a JSON object, if a field has the wrong type, or if the
///         file has a different model_type. It is also thrown if the file uses a setting that these models do not
///         support (relative positions, a decoder, scaling by layer). The message names the setting
BertOptions read_bert_config(const std::string& path);
DistilBertOptions read_distilbert_config(const std::string& path);
GptOptions read_gpt_config(const std::string& path);

/// Creates a model entry from a config.json. Its model_type selects a text classifier (bert, distilbert), a next-token
/// model (gpt2) or an image classifier (resnet: ResNet-18 to ResNet-152). In the files of timm, `architecture` selects the
/// image classifier (resnet18 to resnet152). The entry's `make` keeps the vocabulary size of the file, so that pretrained
/// weights fit. `make` throws if the requested vocabulary is larger.
/// Params: path – a path, or an address that io::fetch_file() accepts, such as hf://org/name/config.json
/// Throws: c10::ValueError like the functions above and io::fetch_file(), or if the model is not one of these (the message
///         lists them)
ModelEntry config_entry(const std::string& path);

}  // namespace bellows::models
