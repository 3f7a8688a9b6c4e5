#pragma once

namespace bellows {

/// Restarts the program with GOMP_SPINCOUNT=20000, unless the environment sets a wait policy for OpenMP threads
/// (GOMP_SPINCOUNT, OMP_WAIT_POLICY). A restart is necessary because libgomp reads the variable before main. With
/// libgomp's default spinning, timings of libtorch programs are 5 to 10 times worse as soon as another program uses the
/// cores.
/// Params: argv – of main. The function returns if there is nothing to do or if the restart fails
/// Threads: call it first in main, before other threads exist
void set_openmp_wait_policy(char** argv);

}  // namespace bellows
