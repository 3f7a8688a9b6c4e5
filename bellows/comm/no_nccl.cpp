#include "bellows/comm/group_impl.h"

// Compiled in builds without CUDA.

namespace bellows::comm {

bool has_nccl() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int, double) {
  TORCH_CHECK(false, "init: this build has no NCCL. Build Bellows with CUDA (-DBELLOWS_CUDA=ON).");
}

}  // namespace bellows::comm
