#include <ATen/Context.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "bellows/comm/group_impl.h"
#include "bellows/comm/rendezvous/store_impl.h"

// Compiled in builds with CUDA. Not tested on several GPUs.

namespace bellows::comm {

bool has_nccl() {
  return at::hasCUDA();
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            double timeout_s) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = milliseconds(timeout_s);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace bellows::comm
