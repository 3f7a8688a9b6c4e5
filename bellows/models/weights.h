#pragma once

#include <map>
#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Like load_state_dict(), but for weight files of other projects. If names in `tensors` differ from the model's only
/// in their form, they are converted. The files of Hugging Face's BERT, DistilBERT and GPT-2 therefore load unchanged:
///   - `LayerNorm.gamma` and `.beta` of old files become `weight` and `bias`;
///   - the prefix of the base model (`bert.`, `distilbert.`, `transformer.`) is added or removed;
///   - entries that are not separate weights are skipped: `position_ids`, GPT-2's causal masks (`attn.bias`,
///     `attn.masked_bias`), and a tied decoder that equals its embedding (`lm_head.weight`,
///     `cls.predictions.decoder.*`, `vocab_projector.weight`).
/// In files from before PyTorch 0.4.1, such as some of torchvision, batch norms have no `num_batches_tracked`. It is set
/// to 0.
/// Params, numerics and exceptions are those of load_state_dict(). Also throws c10::ValueError if a tied decoder
/// differs from its embedding (the model was trained without tied weights), or if two tensors belong to the same
/// weight.
LoadReport load_weights(const Model& model, const NamedTensors& tensors, bool strict = true);

/// Returns the names under which load_weights() would find the model's tensors, by name in the model. Nothing is copied.
/// Throws: c10::ValueError if a tensor belongs to no weight of the model, and under the same conditions as
///         load_weights() if a tied decoder differs or two tensors belong to the same weight
std::map<std::string, std::string> weight_names(const Model& model, const NamedTensors& tensors);

}  // namespace bellows::models
