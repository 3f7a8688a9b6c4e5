#pragma once

#include <ATen/core/Tensor.h>

#include "bellows/comm/group.h"
#include "bellows/parallel/context/context_attention.h"

namespace bellows::parallel {

/// Checks that all ranks call context_attention() with valid arguments that match. Collective.
/// Cost:   all-gathers 8 bytes. If the ranks differ, also their descriptions
/// Throws: c10::ValueError on every rank. The message names the rank whose arguments are invalid or differ
void check_context_call(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const comm::Group& group, const ContextAttentionOptions& options);

const char* to_string(ContextMethod method);

}  // namespace bellows::parallel
