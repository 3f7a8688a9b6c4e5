#pragma once

#include "bellows/plan/candidates.h"
#include "bellows/plan/decision.h"
#include "bellows/plan/plan.h"
