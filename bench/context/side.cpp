#include "bench/context/side.h"

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "bellows/comm/collectives.h"
#include "bellows/models/formula_weights.h"
#include "bellows/parallel/context/context_attention.h"
#include "bellows/parallel/context/sequence_layout.h"
#include "bench/support/ranks.h"

namespace bellows::bench {

namespace {

/// ORDER.METHOD: causal or full, and ring, all_to_all or gather.
class ContextRun {
 public:
  ContextRun(const std::string& name, const World& world, const ContextSizes& sizes) : world_(world) {
    const std::string method = name.substr(name.find('.') + 1);
    options_.causal = name.starts_with("causal");
    options_.method = method == "ring"         ? parallel::ContextMethod::ring
                      : method == "all_to_all" ? parallel::ContextMethod::all_to_all
                                               : parallel::ContextMethod::gather;
    options_.zigzag = options_.causal;  // as Python's load balancing
    const parallel::SequenceLayout layout{.ranks = world.size(), .zigzag = options_.zigzag};
    for (const char* tensor : {"query", "key", "value", "gradient"}) {
      const at::Tensor whole = models::formula_uniform(tensor, {1, sizes.heads, sizes.tokens, sizes.width});
      parts_.push_back(parallel::part_of_rank(whole.to(at::kFloat), 2, world.rank(), layout).clone());
    }
    for (size_t i = 0; i < 3; ++i) parts_[i].requires_grad_();
  }

  at::Tensor step() {
    for (size_t i = 0; i < 3; ++i) parts_[i].mutable_grad().reset();
    at::Tensor y = parallel::context_attention(parts_[0], parts_[1], parts_[2], world_, options_);
    y.backward(parts_[3]);
    return y;
  }

  /// Sums of squares of the output and of the gradients, over all ranks.
  std::string numbers() {
    std::vector<at::Tensor> sums = {step().detach().to(at::kDouble).square().sum()};
    for (size_t i = 0; i < 3; ++i) sums.push_back(parts_[i].grad().to(at::kDouble).square().sum());
    const at::Tensor all = comm::all_reduce(at::stack(sums), world_);
    const auto* numbers = all.const_data_ptr<double>();
    return numbers_text({numbers, numbers + all.numel()});
  }

 private:
  World world_;
  parallel::ContextAttentionOptions options_;
  std::vector<at::Tensor> parts_;
};

}  // namespace

int serve_context_rank(const ContextSizes& sizes) {
  start_other_ranks("bench_context");
  const World world = init();
  std::unique_ptr<ContextRun> run;
  const auto numbers = [&](std::istream& words) {
    std::string name;
    words >> name;
    run = std::make_unique<ContextRun>(name, world, sizes);
    return run->numbers();
  };
  return serve_commands(world, [&] { run->step(); }, {{"numbers", numbers}});
}

}  // namespace bellows::bench
