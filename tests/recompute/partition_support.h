#pragma once

#include "bellows/comm/collectives.h"
#include "tests/parallel/ranks.h"
#include "tests/recompute/support.h"
#include "tests/support/errors.h"

namespace bellows::recompute::testing {

using parallel::testing::run_ranks;

/// Numbers that are the same on all ranks, which are threads and share the generators.
inline at::Tensor formula(at::IntArrayRef sizes, int64_t start) {
  return torch::arange(c10::multiply_integers(sizes)).add(start).mul(0.37).sin().view(sizes).contiguous();
}

/// A checkpointed call of two tensors, for the blocks of PartitionedNet.
using PairLayer = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
using PairCall = std::function<at::Tensor(const PairLayer& block, const at::Tensor& x, const at::Tensor& rows)>;

inline at::Tensor checkpointed_pair(const PairLayer& block, const at::Tensor& x, const at::Tensor& rows) {
  return checkpoint(block, x, rows);
}

/// Blocks whose inputs have sizes that no number of ranks divides. They are views, slices, integers and booleans, too.
class PartitionedNet {
 public:
  static constexpr int64_t blocks = 6, rows = 7, columns = 13;

  PartitionedNet() {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < blocks; ++i)
      weights_.push_back((formula({columns, columns}, 100 * i) * 0.3).requires_grad_());
  }

  at::Tensor loss(int64_t step, const PairCall& call = checkpointed_pair) const {
    at::Tensor x = formula({rows, 5, columns}, 1000 * step);
    const at::Tensor order = torch::arange(rows).flip(0), mask = formula({rows, 1, 1}, step) > 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const PairLayer block = [w = weights_[i], mask](const at::Tensor& y, const at::Tensor& rows_of) {
        return (y.matmul(w).tanh().index_select(0, rows_of) * mask.logical_not()).add(y.sin()).relu();
      };
      if (i == 2) {  // a transposed view
        const PairLayer turned = [block](const at::Tensor& y, const at::Tensor& of) { return block(y.mT(), of); };
        x = call(turned, x.mT(), order);
      } else if (i == 4) {  // a slice, whose elements are not adjacent
        const PairLayer part = [w = weights_[i]](const at::Tensor& y, const at::Tensor& of) {
          return y.index_select(0, of).matmul(w.narrow(0, 1, 11)).sin();
        };
        x = x + call(part, x.narrow(2, 1, 11), order);
      } else {
        x = call(block, x, order);
      }
    }
    return x.square().mean();
  }

  std::vector<at::Tensor> take_gradients() const {
    std::vector<at::Tensor> result;
    for (const at::Tensor& w : weights_) result.push_back(std::exchange(at::Tensor(w).mutable_grad(), {}));
    return result;
  }

  /// Gradients of one step.
  std::vector<at::Tensor> gradients(int64_t step, const PairCall& call = checkpointed_pair) const {
    loss(step, call).backward();
    return take_gradients();
  }

 private:
  std::vector<at::Tensor> weights_;
};

/// The error message of each rank, "no error" if it threw none.
inline std::vector<std::string> messages_of_ranks(int ranks, const std::function<void(const comm::Group&)>& body,
                                                  double timeout_s = 60) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  const auto run = [&](const comm::Group& group) {
    std::string& message = messages[static_cast<size_t>(group.rank())];
    try {
      body(group);
      message = "no error";
    } catch (const c10::Error& error) {
      message = user_message(error);
      throw;  // the rank leaves, as a process would
    }
  };
  try {
    run_ranks(ranks, run, timeout_s);
  } catch (const std::exception&) {
    return messages;
  }
  return messages;
}

}  // namespace bellows::recompute::testing
