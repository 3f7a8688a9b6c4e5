#include "bellows/serve/idle_memory.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace bellows::serve {

void IdleMemory::check(uint64_t requests) {
  constexpr int quiet_calls = 5;
  if (requests != requests_) {
    requests_ = requests;
    quiet_ = 0;
    used_ = true;
    return;
  }
  if (!used_ || ++quiet_ < quiet_calls) return;
  used_ = false;
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace bellows::serve
