#pragma once

namespace bellows::bench {

/// Our side of the comparison, as a program of its own: rank 0 takes the commands of bench/peers/ddp.py on its standard
/// input, tells the other ranks, and starts them.
/// Returns: the program's exit code
int serve_rank(double learning_rate);

}  // namespace bellows::bench
