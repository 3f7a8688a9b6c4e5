#pragma once

namespace bellows {

/// Starts the program once more with GOMP_SPINCOUNT=20000, unless the environment says how OpenMP threads are to wait
/// (GOMP_SPINCOUNT, OMP_WAIT_POLICY). libgomp reads it before main. Its default spinning makes timings 5 to 10 times
/// worse, for plain libtorch as for anything over it, as soon as another program wants the cores.
/// Params: argv – of main; returns when there is nothing to do, or when the program cannot be started again
/// Threads: call it first in main, before there are others
void bound_spinning(char** argv);

}  // namespace bellows
