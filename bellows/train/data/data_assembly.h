#pragma once

#include "bellows/models/registry.h"
#include "bellows/train/data/data_split.h"
#include "bellows/train/job.h"

namespace bellows::train {

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

/// Cross-entropy of scores [N, T, words] of packed texts with the token that follows each one.
struct TokenLoss {
  at::Tensor sum, count;  ///< 0-d, over all that have one
  at::Tensor targets;     ///< [N, T], -100: none
};
TokenLoss next_token_loss(const at::Tensor& scores, const data::Batch& batch);
/// The sum over targets [N, T], -100: none, of a forward pass, without all scores at once where the model says what its head is.
at::Tensor token_loss(const Model& model, const at::Tensor& input, const at::Tensor& targets, double label_smoothing);

/// Of the texts of a data set, how many were cut so far, as a line for people; "": none.
std::string cut_texts_note(const data::Dataset& dataset);

}  // namespace bellows::train
