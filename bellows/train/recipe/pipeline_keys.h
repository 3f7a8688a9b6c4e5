#pragma once

#include <string>

#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Returns the number of ranks that divide the model into stages: the axis `pipeline` of the key `mesh`, or 1.
int pipeline_ranks(const Recipe& recipe);

/// Returns the schedule of the keys `pipeline_schedule`, `micro_batches` and `pipeline_stages`. With `micro_batches: 0`,
/// a step has four micro-batches per rank of the pipeline, or one per sample if the batch has fewer samples. The schedule
/// interleaved rounds this number down to a multiple of the ranks. With four micro-batches per rank, and stages that take
/// equal time, the bubble is at most a fifth of a step.
/// Throws: RecipeError if the batch of a pipeline has too few samples, or if a file is for other numbers of ranks or
///         micro-batches. c10::ValueError if the file cannot be read
parallel::PipelineSchedule pipeline_schedule(const Recipe& recipe);

/// Checks the keys of pipeline parallelism, and their combinations with other keys.
/// Params: where – name of the text in messages, such as a path
/// Throws: c10::ValueError if a combination is not supported; the message says what to change
void check_pipeline_keys(const Recipe& recipe, const std::string& where);

}  // namespace bellows::train
