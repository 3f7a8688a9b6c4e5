#pragma once

#include "bellows/parallel/data_parallel.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/gradient_hook.h"
#include "bellows/parallel/hooks.h"
#include "bellows/parallel/local_sgd.h"
#include "bellows/parallel/reduce_metrics.h"
#include "bellows/parallel/same_model.h"
#include "bellows/parallel/shard_optimizer.h"
#include "bellows/parallel/sync_batch_norm.h"
