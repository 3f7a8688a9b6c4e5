#pragma once

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Makes each BatchNorm1d, 2d and 3d of the model use the mean and variance over the samples of all ranks, also for
/// running statistics. The result is that of one process with the whole batch. Modules, names, parameters and buffers
/// do not change; evaluation needs no other rank. The ranks' batches may differ in size and may be empty.
///
/// All ranks must run the same layers in the same order, forward and backward. The gradients of weight and bias are
/// those of the rank's samples; DistributedDataParallel averages them. In a group of one, nothing changes.
///
/// Limits: clones of the model (replicas of DataParallel) are not converted. Layers with neither weight nor running
///         statistics cannot be identified and are refused. torch::nn refuses batches with one value per channel on a
///         rank. There is no second derivative. Under inference mode, layers in training mode are not synchronized
/// Numerics: float64 matches one process with the whole batch to 1e-9 over 20 steps
///           (tests/parallel/sync_batch_norm_test.cpp)
/// Cost:     for each layer, 2 C + 1 doubles are gathered in forward and 2 C summed in backward
/// Returns:  the number of layers
/// Throws:   c10::ValueError if the model is not a torch::nn module
/// Ref:      torch.nn.SyncBatchNorm.convert_sync_batchnorm
int convert_sync_batch_norm(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
