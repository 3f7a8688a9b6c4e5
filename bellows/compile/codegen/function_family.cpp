#include "bellows/compile/codegen/function_family.h"

#include <utility>

namespace bellows::compile_detail {
namespace {

void make_general(KernelCode::Function& function) {
  const MarkedText& text = function.marked;
  if (text.sizes.empty() && text.constants.empty()) return;
  function.read_numbers(std::vector<bool>(text.sizes.size(), true), std::vector<bool>(text.constants.size(), true));
}

}  // namespace

std::vector<KernelCode::Function> FunctionFamily::adapt(const std::vector<KernelCode*>& kernels) {
  std::vector<const KernelCode::Function*> unchanged;
  bool varies = false;
  for (KernelCode* kernel : kernels) {
    for (KernelCode::Function& function : kernel->functions) {
      if (is_new_) literal_.insert(function.symbol);
      if (literal_.contains(function.symbol)) {
        unchanged.push_back(&function);
        continue;
      }
      make_general(function);
      general_.insert(function.symbol);
      varies = true;
    }
  }
  is_new_ = false;
  std::vector<KernelCode::Function> further;
  for (const KernelCode::Function* function : unchanged) {
    if (!varies) break;
    KernelCode::Function general = *function;
    make_general(general);
    if (general.symbol != function->symbol && general_.insert(general.symbol).second)
      further.push_back(std::move(general));
  }
  return further;
}

}  // namespace bellows::compile_detail
