#pragma once

// Includes the component plan, which predicts the peak memory of a training step and of inference.
#include "bellows/plan/candidates.h"
#include "bellows/plan/decision.h"
#include "bellows/plan/inference_plan.h"
#include "bellows/plan/link_bandwidth.h"
#include "bellows/plan/plan.h"
#include "bellows/plan/strategy.h"
