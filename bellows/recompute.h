#pragma once

// Includes the component recompute, which reduces the memory of activations.
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/budget.h"
#include "bellows/recompute/compress.h"
#include "bellows/recompute/offload.h"
#include "bellows/recompute/partition.h"
#include "bellows/recompute/policy.h"
