#pragma once

#include "bellows/optim/adafactor.h"
#include "bellows/optim/averaging.h"
#include "bellows/optim/batch_size.h"
#include "bellows/optim/clip.h"
#include "bellows/optim/groups.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/lr_scheduler.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/python_state.h"
#include "bellows/optim/schedule.h"
#include "bellows/optim/schedule_compose.h"
#include "bellows/optim/state.h"
