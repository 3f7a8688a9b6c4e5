#include "bellows/parallel/pipeline/replicas.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/ddp/same_weights.h"

namespace bellows::parallel {

void start_replicas(const NamedTensors& held, const comm::Group& replicas, bool broadcast) {
  if (broadcast) return broadcast_tensors(held, 0, replicas);
  const auto found = first_difference(weight_digests(held, replicas));
  if (!found) return;
  TORCH_CHECK_VALUE(false, "pipeline: \"", held[found->second].first, "\" differs between ranks 0 and ", found->first,
                    " of group ", replicas.name(),
                    ". Load the same weights on all ranks, or set PipelineOptions::broadcast.");
}

double sum_over_replicas(double number, const comm::Group& replicas, c10::Device device) {
  const at::Tensor value = at::scalar_tensor(number, at::TensorOptions(device).dtype(at::kDouble));
  return comm::all_reduce(value, replicas).item<double>();
}

}  // namespace bellows::parallel
