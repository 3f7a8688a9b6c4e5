#pragma once

namespace bellows::bench {

/// Our side of the comparison, as a separate program. Rank 0 reads the commands of bench/peers/ddp.py from its standard input and
/// forwards them to the other ranks, which it starts.
/// Returns: the program's exit code
int serve_rank(double learning_rate);

}  // namespace bellows::bench
