#pragma once

namespace bellows {

/// Restarts the program with GOMP_SPINCOUNT=20000, unless the environment sets a wait policy for OpenMP threads
/// (GOMP_SPINCOUNT, OMP_WAIT_POLICY). The restart is necessary because libgomp reads the variable before main(). With
/// libgomp's default spin count, a libtorch program takes 5× to 10× as much time when another program uses the same
/// cores. The function returns only if no restart is needed, or if the restart fails.
/// Params: argv – the arguments of main()
/// Threads: call this function first in main(), before other threads exist
void set_openmp_wait_policy(char** argv);

}  // namespace bellows
