#pragma once

#include "bellows/amp/advice.h"
#include "bellows/amp/autocast.h"
#include "bellows/amp/grad_scaler.h"
#include "bellows/amp/master_weights.h"
#include "bellows/amp/policy.h"
