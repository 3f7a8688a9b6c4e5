#pragma once

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// From now on each BatchNorm1d, 2d and 3d of the model normalizes by the mean and variance of the samples of all ranks, as
/// one process with the whole batch would, and keeps running statistics of them. The modules stay what they are, with their
/// names, parameters and buffers; evaluation needs no other rank. Batches may differ in size from rank to rank, and be empty.
///
/// All ranks run the same layers in the same order, forward and backward. The gradients of weight and bias are those of the
/// rank's samples: DistributedDataParallel averages them. In a group of one nothing changes.
///
/// Limits: clones of the model (DataParallel's replicas) are not converted; a layer with neither weight nor running
///         statistics cannot be told apart and is refused; a rank's batch with a single value a channel is refused by
///         torch::nn itself; there is no second derivative; under inference mode a layer in training is not synchronized.
/// Numerics: float64 equals one process with the whole batch to 1e-9 over 20 steps (tests/parallel/sync_batch_norm_test.cpp)
/// Cost:     for each layer 2 C + 1 doubles gathered in forward, 2 C summed in backward
/// Returns:  how many layers there are
/// Throws:   c10::ValueError – the model is not a torch::nn module
/// Ref:      torch.nn.SyncBatchNorm.convert_sync_batchnorm
int convert_sync_batch_norm(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
