#pragma once

// Includes the component inspect: tools that show the memory, operators, synchronizations and NaNs of a step.
#include "bellows/inspect/capture.h"
#include "bellows/inspect/determinism.h"
#include "bellows/inspect/first_nan.h"
#include "bellows/inspect/flops.h"
#include "bellows/inspect/memory.h"
#include "bellows/inspect/module_map.h"
#include "bellows/inspect/op_counter.h"
#include "bellows/inspect/profile/profile.h"
#include "bellows/inspect/random_guard.h"
#include "bellows/inspect/sync.h"
#include "bellows/inspect/tensor_recorder.h"
#include "bellows/inspect/tensor_timeline.h"
#include "bellows/inspect/trace.h"
