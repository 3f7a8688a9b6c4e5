#pragma once

#include "bellows/train/resolved_job.h"

namespace bellows::train {

// ---- the data of a recipe

/// Returns the training data in the form that the recipe's model reads, shuffled, in batches. data_split.h selects the
/// samples.
/// - Images: scaled, augmented, normalized by the mean and std of the dataset.
/// - Texts: tokenized, truncated, and padded with 0 to the longest of the batch, as "tokens" [N, T]. For next-token
///   models, packed rows of several texts: "tokens" and "segment_ids" [N, T].
/// - Series: "series" [N, T, C], padded with NaN.
/// - Arrays: one tensor for each of the model's inputs, by its name; "features" for a model with one input.
/// Class labels are "label" [N]. Other targets are "target": numbers [N, K], or a mask [N, H, W].
data::Dataset open_train_data(const Recipe& recipe);
/// Returns the held-out data: `eval_data`; or, for a folder, the split "test" (else "val", "valid", "validation") or
/// the samples held out of a folder without splits. With `eval_split`, that split or share.
/// Empty if `data` names files and neither key is set.
std::optional<data::Dataset> open_eval_data(const Recipe& recipe);

// ---- parts of the functions above, for make_job() and for dry runs

data::Dataset train_part(const ResolvedJob& job);
std::optional<data::Dataset> eval_part(const ResolvedJob& job);

/// Throws: RecipeError if the recipe has keys for images or texts, but the model does not read them
void check_input_keys(const Recipe& recipe, models::InputKind input);

// Sizes of the first sample.
int64_t image_channels(const ResolvedJob& job);
/// Values per time step. Throws: c10::ValueError if the sample has no series
int64_t series_width(const data::Dataset& dataset);
/// Number of values that a model with one input of kind `arrays` reads; 0 if it has several inputs.
int64_t features_width(const ResolvedJob& job);
/// Number of values that the model predicts.
int64_t targets_width(const ResolvedJob& job);

/// Checks the targets of the first samples: labels of `bce` from 0 to 1, masks with classes below num_classes.
/// Cost:   reads up to 64 samples
/// Throws: c10::ValueError (the message names the sample)
void check_targets(const ResolvedJob& job);

/// Describes how many texts of a dataset were truncated so far; "" if none.
std::string cut_texts_note(const data::Dataset& dataset);

}  // namespace bellows::train
