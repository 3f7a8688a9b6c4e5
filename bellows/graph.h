#pragma once

#include "bellows/graph/ambient.h"
#include "bellows/graph/explanation.h"
#include "bellows/graph/geometry.h"
#include "bellows/graph/graph.h"
#include "bellows/graph/operator_facts.h"
#include "bellows/graph/region.h"
