#pragma once

// Includes the component parallel, which trains one model on several ranks or with several replicas.
#include "bellows/parallel/data_parallel.h"
#include "bellows/parallel/ddp/distributed_data_parallel.h"
#include "bellows/parallel/ddp/local_sgd.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/hooks/gradient_hook.h"
#include "bellows/parallel/hooks/hooks.h"
#include "bellows/parallel/pipeline/pipeline.h"
#include "bellows/parallel/pipeline/schedule.h"
#include "bellows/parallel/pipeline/stages.h"
#include "bellows/parallel/pipeline/timeline.h"
#include "bellows/parallel/placement/device_map.h"
#include "bellows/parallel/placement/streamed_weights.h"
#include "bellows/parallel/reduce_metrics.h"
#include "bellows/parallel/sync_batch_norm.h"
#include "bellows/parallel/tensor/tensor_parallel.h"
#include "bellows/parallel/zero/zero_optimizer.h"
