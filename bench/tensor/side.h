#pragma once

namespace bellows::bench {

/// Our side of the comparison, as a separate program with the commands of bench/peers/tensor.py.
/// Returns: the program's exit code
int serve_tensor_rank(double learning_rate);

}  // namespace bellows::bench
