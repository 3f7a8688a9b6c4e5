#include "bellows/compile/compile.h"

namespace bellows::compile_detail {

CompiledRegion::CompiledRegion(const CompileOptions& options) : region_(std::make_shared<graph::Region>(options)) {}

void CompiledRegion::run(const std::function<void()>& function) {
  region_->run(function);
}

graph::Explanation CompiledRegion::explain() const {
  return region_->explain();
}

std::vector<graph::Graph> CompiledRegion::graphs() const {
  return region_->graphs();
}

}  // namespace bellows::compile_detail
