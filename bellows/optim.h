#pragma once

#include "bellows/optim/optimizers.h"
#include "bellows/optim/schedule.h"
#include "bellows/optim/state.h"
