#pragma once

#include <string>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"

namespace bellows::parallel {

/// Checks that all ranks have the same lines. Collective.
/// Params: what – start of the message; item – kind of the lines: "tensor"; advice – end of the message
/// Cost:   rank 0's lines are broadcast; the other ranks' answers are empty if nothing differs
/// Throws: c10::ValueError on every rank if a line differs (the message has the rank, its first different line and that
///         of rank 0)
void check_same_lines(const std::string& what, const std::string& item, const std::vector<std::string>& own,
                      const comm::Group& group,
                      const std::string& advice = "Make it with the same options, in the same order, on every rank.");

/// Checks that all ranks hold the same model: number, order, names, shapes, dtypes and requires_grad of parameters and
/// buffers, but not their values. Collective. Cost and Throws: see above, about 50 bytes per tensor
void check_same_model(const Model& model, const comm::Group& group);

/// Copies rank 0's buffers, such as running statistics, to all ranks. Collective.
void broadcast_buffers(const Model& model, const comm::Group& group);

}  // namespace bellows::parallel
