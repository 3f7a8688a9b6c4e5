#pragma once

#include "bellows/models/formula_weights.h"
#include "bellows/models/mlp.h"
#include "bellows/models/plugin.h"
#include "bellows/models/registry.h"
#include "bellows/models/resnet.h"
#include "bellows/models/summary.h"
#include "bellows/models/torchscript.h"
