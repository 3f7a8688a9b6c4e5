#pragma once

#include <cstdint>
#include <string>

#include "bellows/core/model.h"
#include "bellows/quant/training/trained_layer.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"

namespace bellows::train {

/// A model with trained weights, together with the resolved recipe, which describes its data, classes and task. To
/// evaluate another model on the same data, such as a quantized one, replace the member `model`.
struct TrainedModel {
  ResolvedJob job;
  Model model;
  std::string weights;    ///< path of the weights; empty if `model` is a TorchScript file that contains them
  int64_t step = -1;      ///< number of optimizer steps of the checkpoint; -1 if `weights` is not a checkpoint
  bool averaged = false;  ///< the weights are the moving average of the training run (`ema_decay`)
  quant::TrainedLayers trained_layers{};  ///< of training with the key `quantize`; otherwise empty
  bool quantized = false;  ///< the layers have integer weights; evaluate() and predict() then compile the forward pass
};

/// Reads the recipe of a training run.
/// Params: run – the run folder
/// Throws: c10::ValueError if the folder is missing or contains no recipe.yaml
Recipe recipe_of_run(const std::string& run);

/// Loads the model of a training run from its newest undamaged checkpoint. A warning is logged for each damaged
/// checkpoint that is skipped. The run may still be in progress.
/// Params: recipe – usually recipe_of_run(run), with changes such as another device. Its `data` describes the classes
///                  and the normalization
/// Cost:   the cost of resolve(), plus reading the checkpoint
/// Throws: c10::ValueError if there is no checkpoint, none of them can be read, or the weights do not fit the model.
///         Other exceptions are those of resolve()
TrainedModel load_run(const std::string& run, const Recipe& recipe);
/// Like load_run(run, recipe_of_run(run)).
TrainedModel load_run(const std::string& run);

/// Creates the model of a recipe and loads its weights. If the recipe's `data` is empty, classes have no names, images
/// are not normalized, and `num_classes` must be set.
/// Params: weights – a safetensors file, a torch.save file or a checkpoint. If empty, the weights are those of the
///                   recipe's `weights`, or of its TorchScript file. Of a checkpoint with averaged weights, the average
///                   is loaded
/// Throws: c10::ValueError if there are no weights, the file cannot be read, or the weights do not fit the model (the
///         message lists the differences). Other exceptions are those of resolve()
TrainedModel load_trained(const Recipe& recipe, const std::string& weights);

/// Creates the model of a recipe with random weights, to measure its speed. The same `seed` gives the same weights. If the
/// recipe's `data` is empty, the number of classes is `num_classes`, or 10 if it is not set.
/// Throws: like resolve()
TrainedModel load_untrained(const Recipe& recipe);

}  // namespace bellows::train
