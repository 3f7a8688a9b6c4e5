#pragma once

#include "bellows/graph/ambient.h"
#include "bellows/graph/autocast.h"
#include "bellows/graph/branches.h"
#include "bellows/graph/explanation.h"
#include "bellows/graph/fusible.h"
#include "bellows/graph/geometry.h"
#include "bellows/graph/graph.h"
#include "bellows/graph/operator_facts.h"
#include "bellows/graph/parallelism.h"
#include "bellows/graph/pass.h"
#include "bellows/graph/region.h"
#include "bellows/graph/rewrite.h"
