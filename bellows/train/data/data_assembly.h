#pragma once

#include "bellows/models/registry.h"
#include "bellows/train/data/data_split.h"

namespace bellows::train {

// ---- the data of a recipe

/// Training data as the recipe's model reads it, shuffled, in batches. Which samples these are says data_split.h.
/// - Pictures: scaled, augmented, normalised by their own mean and std.
/// - Texts: tokenized, cut, and padded with 0 to the longest of the batch, as "tokens" [N, T]; for models of the next
///   token packed, rows of several texts: "tokens" and "segment_ids" [N, T].
/// - Series: "series" [N, T, C], filled up with NaN.
data::Dataset open_train_data(const Recipe& recipe);
/// Held-out data: `eval_data`; or, of a folder, the split "test" (else "val", "valid", "validation"), or what is held
/// out of one without. Nothing where `data` names files, and `eval_data` nothing.
std::optional<data::Dataset> open_eval_data(const Recipe& recipe);

// ---- its parts, for make_job() and for dry runs

/// Outputs of the model: the recipe's, or as many as the data have classes; 0: nobody says.
int64_t classes_of(const Recipe& recipe, const data::DatasetInfo& info);

/// Throws: RecipeError – keys of pictures or texts, and the model reads none
void check_input_keys(const Recipe& recipe, models::InputKind input);

/// What the model's first layer has to be as wide as: channels of pictures, words of texts, values of a series' step.
/// Params: tokenizer – of texts; none: the model says how many words it knows
int64_t input_width(const models::ModelEntry& entry, const data::DatasetInfo& info,
                    const std::optional<data::TextTokenizer>& tokenizer);
int64_t image_channels(const models::ModelEntry& entry, const data::DatasetInfo& info);
/// The recipe's, of a model of texts.
std::optional<data::TextTokenizer> tokenizer_of(const Recipe& recipe, const models::ModelEntry& entry);
/// Values of a step, as the first sample has them. Throws: c10::ValueError – it has no series
int64_t series_width(const data::Dataset& dataset);

/// Most tokens of a text; 0: any number.
int64_t longest_text(const Recipe& recipe, const models::ModelEntry& entry);

data::Dataset train_part(const Recipe& recipe, const DataSplit& split);
std::optional<data::Dataset> eval_part(const Recipe& recipe, const DataSplit& split);

/// Of the texts of a data set, how many were cut so far, as a line for people; "": none.
std::string cut_texts_note(const data::Dataset& dataset);

}  // namespace bellows::train
