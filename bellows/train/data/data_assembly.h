#pragma once

#include <optional>

#include "bellows/data/images/augment_list.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

// ---- Open the data of a recipe

/// Opens the training data of a recipe, shuffled and in batches. Each batch contains the inputs that the model reads:
/// - Image models: images that are scaled, augmented, and normalized by the mean and standard deviation of the dataset.
/// - Text classifiers: "tokens" [N, T], tokenized, truncated, and padded with 0 to the longest text of the batch.
/// - Next-token models: "tokens" and "segment_ids" [N, T], where each row packs several texts.
/// - Series models: "series" [N, T, C], padded with NaN.
/// - Array models: one tensor for each model input, under the name of the input. A model with one input reads
///   "features".
/// Class labels are in the tensor "label" [N], or as a probability per class [N, C] if `augment` contains MixUp or CutMix. Other targets are in "target": numbers [N, K] or a mask [N, H, W].
/// data_split.h describes how the training samples are selected.
data::Dataset open_train_data(const Recipe& recipe);
/// Opens the held-out data of a recipe: `eval_data` if it is set, and otherwise the split or share in `eval_split`. If
/// both keys are empty and `data` is a folder, its split "test" is used (or, if there is none, "val", "valid" or
/// "validation"). If the folder has no such split, a tenth of its samples is held out.
/// Returns: the held-out data, or an empty optional if there is none
std::optional<data::Dataset> open_eval_data(const Recipe& recipe);

// ---- Parts of the functions above, for make_job() and dry runs

data::Dataset train_part(const ResolvedJob& job);
std::optional<data::Dataset> eval_part(const ResolvedJob& job);

// ---- Data for a trained model

/// Opens the held-out samples of a recipe, as they are stored. They are not yet prepared as batches.
std::optional<data::Dataset> held_out_part(const ResolvedJob& job);
/// Prepares a dataset as the held-out data of training: inputs with the same transforms, and targets, in the order of
/// the dataset.
data::Dataset evaluation_batches(const ResolvedJob& job, const data::Dataset& dataset);
/// Like evaluation_batches(), but without targets, so the samples need no labels. Without the recipe key `image_size`,
/// images of another size than those of the training data are resized.
data::Dataset prediction_batches(const ResolvedJob& job, const data::Dataset& dataset);

/// Returns the list of augmentations in `augment`, or nothing if the key is none, crop or crop_flip.
/// Throws: c10::ValueError if the list is invalid (see data::AugmentList)
std::optional<data::AugmentList> augment_list(const Recipe& recipe);
/// Throws: RecipeError if `augment` contains MixUp or CutMix, but another key needs one class per sample
void check_mixed_labels(const ResolvedJob& job);

/// Throws: RecipeError if the recipe sets keys for images or texts, but the model does not read such inputs
void check_input_keys(const Recipe& recipe, models::InputKind input);

// Sizes of the first sample
int64_t image_channels(const ResolvedJob& job);
/// Returns the number of values per time step.
/// Throws: c10::ValueError if the sample has no series
int64_t series_width(const data::Dataset& dataset);
/// Returns the number of values that a model with one input of kind `arrays` reads, or 0 if it has several inputs.
int64_t features_width(const ResolvedJob& job);
/// Returns the number of values that the model predicts.
int64_t targets_width(const ResolvedJob& job);

/// Checks the targets of the first 64 samples. `bce` labels must be between 0 and 1. Class numbers in masks must be
/// less than num_classes. In uint8 masks, 255 is also valid, and such pixels are ignored.
/// Cost:   reads up to 64 samples
/// Throws: c10::ValueError if a target is missing or out of range, or a mask is not [H, W] (the message names the
///         sample)
void check_targets(const ResolvedJob& job);

/// Describes how many texts of a dataset have been truncated so far. The description is empty if no text has been
/// truncated.
std::string cut_texts_note(const data::Dataset& dataset);

}  // namespace bellows::train
