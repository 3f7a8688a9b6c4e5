#pragma once

#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Do all ranks have the same lines? Collective.
/// Params: what – begins the message: what the lines tell of; item – what a line is: "tensor"; advice – ends it
/// Cost:   rank 0's lines are broadcast; the others' answers are empty where nothing differs
/// Throws: c10::ValueError on every rank – the first line that differs, on which rank, what it is there and on rank 0
void check_same_lines(const std::string& what, const std::string& item, const std::vector<std::string>& own,
                      const comm::Group& group,
                      const std::string& advice = "Make it with the same options, in the same order, on every rank.");

/// Do all ranks hold the same model? Compares number, order, names, shapes, dtypes and requires_grad of the parameters, and
/// the buffers' likewise; not what is in them. Collective. Cost, Throws: as above, some 50 bytes a tensor
void check_same_model(const Model& model, const comm::Group& group);

/// Gives all ranks rank 0's buffers, such as running statistics. Collective.
void broadcast_buffers(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
