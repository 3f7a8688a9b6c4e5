#pragma once

#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// Like load_state_dict(), for weight files of other projects. Names in `tensors` that differ from the model's only in
/// form are converted, so that Hugging Face's files of BERT, DistilBERT and GPT-2 load unchanged:
///   - `LayerNorm.gamma` and `.beta` of old files become `weight` and `bias`;
///   - the prefix of the base model (`bert.`, `distilbert.`, `transformer.`) is added or removed;
///   - entries that are not separate weights are skipped: `position_ids`, GPT-2's causal masks (`attn.bias`,
///     `attn.masked_bias`), and a tied decoder (`lm_head.weight`, `cls.predictions.decoder.*`,
///     `vocab_projector.weight`) that equals its embedding.
/// Params, numerics, throws: like load_state_dict(); also c10::ValueError if a tied decoder differs from the embedding
/// (the file was trained without tied weights), or if there are two tensors for one weight
LoadReport load_weights(const Model& model, const NamedTensors& tensors, bool strict = true);

}  // namespace bellows::models
