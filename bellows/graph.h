#pragma once

// Includes the component graph, which records a function's operators and runs them as an optimized program.
#include "bellows/graph/execution/branches.h"
#include "bellows/graph/execution/parallelism.h"
#include "bellows/graph/passes/autocast.h"
#include "bellows/graph/passes/expression.h"
#include "bellows/graph/passes/pass.h"
#include "bellows/graph/passes/recompute.h"
#include "bellows/graph/passes/work_model.h"
#include "bellows/graph/program/explanation.h"
#include "bellows/graph/program/operator_facts.h"
#include "bellows/graph/program/rewrite.h"
#include "bellows/graph/recording/dispatch_state.h"
#include "bellows/graph/recording/geometry.h"
#include "bellows/graph/recording/recording.h"
#include "bellows/graph/recording/region.h"
