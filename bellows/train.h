#pragma once

// Includes the component train, which trains a model as a recipe describes.
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/data/selection.h"
#include "bellows/train/inference/model_evaluation.h"
#include "bellows/train/inference/prediction.h"
#include "bellows/train/inference/prediction_inputs.h"
#include "bellows/train/inference/streamed_model.h"
#include "bellows/train/inference/trained_model.h"
#include "bellows/train/job.h"
#include "bellows/train/loss.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/resolved_job.h"
#include "bellows/train/run/run_log.h"
#include "bellows/train/run/run_record.h"
#include "bellows/train/run/step_trace.h"
#include "bellows/train/step/evaluation.h"
#include "bellows/train/step/train_loop.h"
#include "bellows/train/task.h"
#include "bellows/train/trainer.h"

namespace bellows {

using data::Batch;
using train::Recipe;
using train::Trainer;

}  // namespace bellows
