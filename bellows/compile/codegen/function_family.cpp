#include "bellows/compile/codegen/function_family.h"

#include <algorithm>

namespace bellows::compile_detail {
namespace {

template <class Number>
void note_differences(const std::vector<Number>& first, const std::vector<Number>& other, std::vector<bool>& varies) {
  for (size_t i = 0; i < first.size(); ++i) varies[i] = varies[i] || first[i] != other[i];
}

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

}  // namespace

void FunctionFamily::adapt(const std::vector<KernelCode*>& kernels) {
  std::unordered_map<std::string, size_t> occurrences;
  for (KernelCode* kernel : kernels) {
    for (KernelCode::Function& function : kernel->functions) {
      const MarkedText& text = function.marked;
      std::vector<Known>& known = known_[text.skeleton];
      const size_t place = occurrences[text.skeleton]++;
      if (place == known.size()) {
        known.push_back({text, std::vector<bool>(text.sizes.size()), std::vector<bool>(text.constants.size())});
        continue;
      }
      Known& mine = known[place];
      note_differences(mine.first.sizes, text.sizes, mine.size_varies);
      note_differences(mine.first.constants, text.constants, mine.constant_varies);
      if (any(mine.size_varies) || any(mine.constant_varies))
        function.read_numbers(mine.size_varies, mine.constant_varies);
    }
  }
}

}  // namespace bellows::compile_detail
