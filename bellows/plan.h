#pragma once

// Includes the component plan, which predicts the memory and time of training steps and of inference.
#include "bellows/plan/candidates.h"
#include "bellows/plan/decision.h"
#include "bellows/plan/inference_plan.h"
#include "bellows/plan/link_bandwidth.h"
#include "bellows/plan/machine_cost.h"
#include "bellows/plan/plan.h"
#include "bellows/plan/price_list.h"
#include "bellows/plan/simulator/cluster.h"
#include "bellows/plan/simulator/cluster_measurement.h"
#include "bellows/plan/simulator/mesh_search.h"
#include "bellows/plan/simulator/simulator.h"
#include "bellows/plan/strategy.h"
