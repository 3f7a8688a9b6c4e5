#include "bellows/system/openmp_wait_policy.h"

#include <unistd.h>

#include <cstdlib>

namespace bellows {

void set_openmp_wait_policy(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "20000", 1);
  execv("/proc/self/exe", argv);
}

}  // namespace bellows
