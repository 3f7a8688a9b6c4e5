#include "bellows/parallel/zero/shard_options.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/optim/optimizers.h"
#include "bellows/parallel/ddp/same_model.h"

namespace bellows::parallel {

namespace {

std::string_view name_of(Offload place) {
  return place == Offload::none ? "none" : place == Offload::host ? "host" : "file";
}

std::string name_of(const std::optional<at::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "none";
}

/// One line per option that all ranks must share. Paths may differ, because each machine has its own disks.
std::vector<std::string> lines_of(const ShardOptions& options) {
  return {c10::str("stage ", options.stage),
          c10::str("bucket_bytes ", options.bucket_bytes),
          c10::str("units {", c10::Join(", ", options.units), "}"),
          c10::str("reshard_after_forward ", options.reshard_after_forward ? "true" : "false"),
          c10::str("parameter_dtype ", name_of(options.parameter_dtype)),
          c10::str("reduce_dtype ", name_of(options.reduce_dtype)),
          c10::str("shard_frozen ", options.shard_frozen ? "true" : "false"),
          c10::str("gathered_frozen_bytes ", options.gathered_frozen_bytes),
          c10::str("weights_file ", options.weights_file.empty() ? "not set" : "set"),
          c10::str("number of replicas ", options.replicas ? options.replicas->size() : 1),
          c10::str("shard_state_over_replicas ", options.shard_state_over_replicas ? "true" : "false"),
          c10::str("uninitialized ", options.uninitialized ? "true" : "false"),
          c10::str("offload_parameters ", name_of(options.offload_parameters)),
          c10::str("offload_state ", name_of(options.offload_state))};
}

}  // namespace

void check_same_shard_options(const ShardOptions& options, const comm::Group& group) {
  std::string problem = describe_differing_options("zero_optimizer", lines_of(options), group);
  if (options.replicas) {
    const std::string across = describe_differing_options("zero_optimizer", lines_of(options), *options.replicas);
    // The other groups must not wait for ranks that throw.
    for (std::string& other : comm::all_gather_strings(problem, *options.replicas)) {
      if (problem.empty()) problem = std::move(other);
    }
    if (problem.empty()) problem = across;
  }
  TORCH_CHECK_VALUE(problem.empty(), problem);
}

void check_shardable(const torch::optim::Optimizer* optimizer, const ShardOptions& options) {
  TORCH_CHECK_VALUE(options.stage >= 1 && options.stage <= 3, "zero_optimizer: expected stage 1, 2 or 3, got ",
                    options.stage, ".");
  TORCH_CHECK_VALUE(options.stage == 3 || !options.parameter_dtype,
                    "zero_optimizer: parameter_dtype needs stage 3, got stage ", options.stage, ".");
  TORCH_CHECK_VALUE(options.stage > 1 || !options.reduce_dtype,
                    "zero_optimizer: reduce_dtype needs stage 2 or 3, because DistributedDataParallel averages the "
                    "gradients in stage 1.");
  TORCH_CHECK_VALUE(options.stage == 3 || !options.shard_frozen,
                    "zero_optimizer: shard_frozen needs stage 3, got stage ", options.stage, ".");
  TORCH_CHECK_VALUE(options.gathered_frozen_bytes >= -1,
                    "zero_optimizer: expected gathered_frozen_bytes of at least 0, ",
                    "or -1 for half of the available memory, got ", options.gathered_frozen_bytes, ".");
  TORCH_CHECK_VALUE(options.stage == 3 || options.weights_file.empty(),
                    "zero_optimizer: weights_file needs stage 3, got stage ", options.stage, ".");
  TORCH_CHECK_VALUE(!options.shard_state_over_replicas || (options.stage > 1 && options.replicas),
                    "zero_optimizer: shard_state_over_replicas needs `replicas` and stage 2 or 3, got stage ",
                    options.stage, options.replicas ? "" : " without `replicas`", ".");
  for (const auto& dtype : {options.parameter_dtype, options.reduce_dtype})
    TORCH_CHECK_VALUE(!dtype || at::isFloatingType(*dtype), "zero_optimizer: expected a floating-point dtype, got ",
                      *dtype, ".");
  TORCH_CHECK_VALUE(options.bucket_bytes > 0, "zero_optimizer: expected bucket_bytes above 0, got ",
                    options.bucket_bytes, ".");
  TORCH_CHECK_VALUE(options.stage == 3 || options.offload_parameters == Offload::none,
                    "zero_optimizer: offload_parameters needs stage 3, got stage ", options.stage,
                    ", in which every rank has complete parameters.");
  TORCH_CHECK_VALUE(options.offload_window_bytes > 0, "zero_optimizer: expected offload_window_bytes above 0, got ",
                    options.offload_window_bytes, ".");
  TORCH_CHECK_VALUE(optimizer, "zero_optimizer: expected an optimizer, got null.");
  TORCH_CHECK_VALUE(!dynamic_cast<const ShardedOptimizer*>(optimizer),
                    "zero_optimizer: this optimizer is already sharded.");
  const std::string type = c10::demangle(typeid(*optimizer).name());
  const auto* ours = dynamic_cast<const optim::LibtorchOptimizer*>(optimizer);
  TORCH_CHECK_VALUE(!ours || !ours->larc(),
                    "zero_optimizer: LARC needs the norms of complete parameters, but each rank has only parts of "
                    "them. Switch LARC off, or use DistributedDataParallel.");
  TORCH_CHECK_VALUE(
      type.find("LBFGS") == std::string::npos && (!ours || !ours->needs_whole_parameters()), "zero_optimizer: ", type,
      " needs complete gradients (norms, means of rows and columns, matrices), which no rank has. Use an elementwise "
      "optimizer. For example, AdamW with .state_dtype = int8 needs 2 bytes per parameter over all ranks.");
  TORCH_CHECK_VALUE(!ours || !ours->lr_tensor().defined(),
                    "zero_optimizer: the optimizer has an lr_tensor, which schedules cannot change through the sharded "
                    "optimizer. Set the lr of the parameter groups instead.");
  TORCH_CHECK_VALUE(!ours || !ours->rounds_at_random(), "zero_optimizer: stochastic rounding depends on the elements ",
                    "of complete parameters, but each rank has only shards. Use master_weights instead of ",
                    "stochastic_rounding, or use DistributedDataParallel.");
}

}  // namespace bellows::parallel
