#include "bellows/system/allocator_reuse.h"

#include <features.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace bellows {

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

}  // namespace bellows
