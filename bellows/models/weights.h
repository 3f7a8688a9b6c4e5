#pragma once

#include <string>

#include "bellows/core/model.h"

namespace bellows::models {

/// load_state_dict() for files of other houses: first the names in `tensors` become the model's where they only differ in
/// form, so that Hugging Face's files of BERT, DistilBERT and GPT-2 load as they are –
///   - `LayerNorm.gamma` and `.beta` of old files are `weight` and `bias`;
///   - a prefix that all of the model's own part has and the file has not (`bert.`, `distilbert.`, `transformer.`), or the
///     other way round, is added or taken away;
///   - what is no weight of its own is left out: `position_ids`, GPT-2's causal masks (`attn.bias`, `attn.masked_bias`), and
///     a tied decoder (`lm_head.weight`, `cls.predictions.decoder.*`, `vocab_projector.weight`) that equals its embedding.
/// Params, numerics, throws: as load_state_dict(); and c10::ValueError – a decoder that is not the embedding: the file was
///         trained without the tie; two tensors for one weight
LoadReport load_weights(const Model& model, const NamedTensors& tensors, bool strict = true);

}  // namespace bellows::models
