#include "bellows/compile/compile.h"

#include "bellows/compile/backend.h"
#include "bellows/nn/fast_random.h"
#include "bellows/nn/fast_sparse.h"
#include "bellows/tap/half_operators.h"

namespace bellows {

FrozenTensors::FrozenTensors(const Model& model) : tensors_(model.parameters()) {
  for (at::Tensor& buffer : model.buffers()) tensors_.push_back(std::move(buffer));
}

}  // namespace bellows

namespace bellows::compile_detail {

CompiledRegion::CompiledRegion(const CompileOptions& options)
    : backend_(options.generate
                   ? std::make_shared<CpuBackend>(BackendOptions{.exact = options.exact,
                                                                 .frozen = options.frozen.tensors(),
                                                                 .autocast = options.autocast,
                                                                 .background = options.background,
                                                                 .always = options.always || options.replay.after > 0,
                                                                 .memory_budget = options.memory_budget})
                   : nullptr),
      region_(std::make_shared<graph::Region>(
          graph::RegionOptions{.max_recordings = options.max_recordings,
                               .max_operators = options.max_operators,
                               .guard_inputs = options.guard_inputs,
                               .record_deferred = options.generate && !options.exact && !options.background,
                               .replay = options.replay,
                               .backend = backend_})),
      replays_(options.replay.after > 0),
      optimizes_(options.generate && !options.exact) {
  TORCH_CHECK_VALUE(options.generate || !options.autocast,
                    "compile: autocast requires generate. Without generate, use an autocast guard in the function.");
  TORCH_CHECK_VALUE(options.generate || options.memory_budget == 1, "compile: memory_budget requires generate, got ",
                    options.memory_budget, " without it. Use the default, memory_budget = 1.");
  TORCH_CHECK_VALUE(options.generate || options.replay.after == 0, "compile: replay requires generate.");
}

bool CompiledRegion::ready() const {
  return !backend_ || backend_->ready();
}

bool CompiledRegion::run(const std::function<void()>& function, const TensorArguments& tensors,
                         graph::CallFrame* frame) const {
  const nn::FastRandomGuard fast_random;  // random operators run when they are called
  const nn::FastSparseGuard fast_sparse(optimizes_);
  const tap::FastHalfGuard fast_half(optimizes_);
  return region_->run(function, tensors, frame);
}

graph::Explanation CompiledRegion::explain() const {
  return region_->explain();
}

std::vector<graph::Recording> CompiledRegion::recordings() const {
  return region_->recordings();
}

}  // namespace bellows::compile_detail
