#pragma once

// Includes the component amp: mixed precision with autocast, precision levels, master weights and gradient scaling.
#include "bellows/amp/advice.h"
#include "bellows/amp/autocast.h"
#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/master_weights.h"
#include "bellows/amp/policy.h"
#include "bellows/amp/weight_shapes.h"
