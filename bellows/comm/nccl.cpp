#include <ATen/Context.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "bellows/comm/backends_impl.h"
#include "bellows/comm/group_impl.h"

// In builds with CUDA. Not run yet: no machine with several GPUs was there.

namespace bellows::comm {

bool has_nccl() {
  return at::hasCUDA();
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            double timeout_s) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace bellows::comm
