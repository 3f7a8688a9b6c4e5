#pragma once

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Do all ranks hold the same model? Compares number, order, names, shapes, dtypes and requires_grad of the parameters, and
/// the buffers' likewise; not what is in them. Collective.
/// Cost:   rank 0's list is broadcast, some 50 bytes a tensor; the others' answers are empty where nothing differs
/// Throws: c10::ValueError on every rank – the first tensor that differs, on which rank, what it is there and on rank 0
void check_same_model(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
