#pragma once

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Makes every BatchNorm1d, BatchNorm2d and BatchNorm3d layer use the mean and variance over the samples of all ranks.
/// Running statistics are also updated with these values. The result matches that of one process with the global batch.
/// Modules, names, parameters and buffers do not change. Evaluation does not communicate. Batches may differ in size
/// between ranks and may be empty.
///
/// All ranks must run the same layers in the same order, in forward and in backward. On each rank, the gradients of
/// weight and bias cover only the samples of this rank; DistributedDataParallel averages them.
///
/// Limits:   clones of the model (replicas of DataParallel) are not converted. torch::nn rejects a batch that has only
///           one value per channel on a rank. Second derivatives are not supported. In inference mode, layers in
///           training mode are not synchronized
/// Numerics: in float64, matches one process with the global batch to 1e-9 over 20 steps
///           (tests/parallel/sync_batch_norm_test.cpp)
/// Cost:     for C channels, each layer gathers 2 C + 1 doubles in forward and sums 2 C doubles in backward
/// Returns:  the number of batch norm layers. In a group of one rank, no layer is converted
/// Throws:   c10::ValueError if the model is not a torch::nn module, or, in a group of several ranks, if a batch norm
///           has neither weights nor running statistics
/// Ref:      torch.nn.SyncBatchNorm.convert_sync_batchnorm
int convert_sync_batch_norm(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
