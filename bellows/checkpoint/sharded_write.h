#pragma once

#include <string>
#include <vector>

#include "bellows/checkpoint/sharded_plan.h"

namespace bellows::checkpoint {

/// Copies what this rank writes into `buffers`, which are used again where they fit: the state may change then.
void copy_own(SavePlan& plan, std::vector<at::Tensor>& buffers);

/// Collective: writes a planned checkpoint.
/// Params: trouble – what went wrong on this rank since it was planned; then nothing is written, and all ranks throw
/// Throws: as save_sharded()
void write_planned(const std::string& path, SavePlan& plan, const comm::Group& group, const std::string& trouble = "");

}  // namespace bellows::checkpoint
