#pragma once

namespace bellows::testing {

/// This program's own write(), connect() and listen(), which libtorch's and Bellows' calls find first.

/// From now on: of what is written to a regular file next, half arrives, and then the signal.
void die_in_the_next_file(int signal);

/// Where the environment has TEST_PROXY, the port of a TcpProxy, and TEST_NODE, the machine that this process is to be taken
/// for: what listens is announced there, and connections go that way. Those to MASTER_PORT do not: who starts the program
/// sees to these.

}  // namespace bellows::testing
