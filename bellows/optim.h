#pragma once

// Includes the component optim: optimizers, learning-rate schedules, gradient clipping and averaged weights.
#include "bellows/optim/adafactor.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/gradient_accumulator.h"
#include "bellows/optim/groups.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/schedules/batch_size.h"
#include "bellows/optim/schedules/lr_scheduler.h"
#include "bellows/optim/schedules/schedule.h"
#include "bellows/optim/schedules/schedule_compose.h"
#include "bellows/optim/state/python_state.h"
#include "bellows/optim/state/state.h"
#include "bellows/optim/step_in_backward.h"
