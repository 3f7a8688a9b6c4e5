#pragma once

#include "bellows/train/job.h"
#include "bellows/train/ladder.h"
#include "bellows/train/ladder_page.h"
#include "bellows/train/recipe.h"
#include "bellows/train/run_log.h"
#include "bellows/train/run_record.h"
#include "bellows/train/selection.h"
#include "bellows/train/step_trace.h"
#include "bellows/train/technique.h"
#include "bellows/train/train_loop.h"
#include "bellows/train/trainer.h"

namespace bellows {

using data::Batch;
using train::Recipe;
using train::Trainer;

}  // namespace bellows
