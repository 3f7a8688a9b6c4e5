#include "bellows/compile/compile.h"

#include "bellows/compile/backend.h"

namespace bellows {

FrozenTensors::FrozenTensors(const Model& model) : tensors_(model.parameters()) {
  for (at::Tensor& buffer : model.buffers()) tensors_.push_back(std::move(buffer));
}

}  // namespace bellows

namespace bellows::compile_detail {

CompiledRegion::CompiledRegion(const CompileOptions& options)
    : backend_(options.generate ? std::make_shared<CpuBackend>(
                                      BackendOptions{options.exact, options.frozen.tensors(), options.autocast,
                                                     options.background, options.always || options.replay.after > 0})
                                : nullptr),
      region_(std::make_shared<graph::Region>(
          graph::RegionOptions{.max_recordings = options.max_recordings,
                               .max_operators = options.max_operators,
                               .guard_inputs = options.guard_inputs,
                               .record_deferred = options.generate && !options.exact && !options.background,
                               .replay = options.replay,
                               .backend = backend_})),
      replays_(options.replay.after > 0) {
  TORCH_CHECK_VALUE(options.generate || !options.autocast,
                    "compile: autocast requires generate. Without generate, use an autocast guard in the function.");
  TORCH_CHECK_VALUE(options.generate || options.replay.after == 0, "compile: replay requires generate.");
}

bool CompiledRegion::ready() const {
  return !backend_ || backend_->ready();
}

bool CompiledRegion::run(const std::function<void()>& function, const TensorArguments& tensors,
                         graph::CallFrame* frame) const {
  return region_->run(function, tensors, frame);
}

graph::Explanation CompiledRegion::explain() const {
  return region_->explain();
}

std::vector<graph::Graph> CompiledRegion::graphs() const {
  return region_->graphs();
}

}  // namespace bellows::compile_detail
