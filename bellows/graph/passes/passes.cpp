#include "bellows/graph/passes/passes.h"

namespace bellows::graph::detail {

/// The order: what makes programs smaller, then what replaces operators, then what puts them together.
std::vector<Pass> all_passes() {
  return {
      {"composites", "says by its parts what only calls other operators", 0, say_composites},
      {"versions", "gives what a program overwrites whole, and made itself, memory of its own", 0, renew_values},
      {"evaluation", "says of batch norm in evaluation that it writes nothing", 0, say_evaluations},
      {"constants", "computes once what depends on constants only", 0, fold_constants},
      {"casts", "casts a value once, whichever views of it are asked for", 0, merge_casts},
      {"common", "computes once what is computed twice", 0, merge_common},
      {"dead code", "leaves out what nobody reads", 0, drop_dead_code},
      {"batch norm", "folds batch norm in evaluation into the known weights of the convolution or linear before it",
       1e-4, fold_batch_norm},
      {"attention", "puts one operator in the place of products, softmax and products", 1e-4, fuse_attention},
      {"linears", "makes one product of linears with known weights that read the same", 1e-5, join_linears},
      {"algebra", "leaves out operators that change no bit", 0, simplify_algebra},
      {"dead code", "leaves out what nobody reads", 0, drop_dead_code},
      {"loops", "groups pointwise operators, reductions and normalizations that can share a nest of loops", 0,
       fuse_loops},
      {"updates", "groups the updates of many tensors", 0, join_updates},
      {"order", "runs as soon as it can what lets go of more memory than it takes", 0, order_for_memory},
      {"reuse", "lets groups write over operands that nobody reads afterwards", 0, reuse_operands},
  };
}

}  // namespace bellows::graph::detail
