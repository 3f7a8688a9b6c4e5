#pragma once

// Everything at once. Each room's own header is lighter: <bellows/data.h>, <bellows/train.h>, …
#include "bellows/amp.h"
#include "bellows/checkpoint.h"
#include "bellows/comm.h"
#include "bellows/core.h"
#include "bellows/data.h"
#include "bellows/inspect.h"
#include "bellows/io.h"
#include "bellows/metrics.h"
#include "bellows/models.h"
#include "bellows/nn.h"
#include "bellows/optim.h"
#include "bellows/parallel.h"
#include "bellows/recompute.h"
#include "bellows/tap.h"
#include "bellows/train.h"
