#include "bellows/compile/codegen/function_family.h"

#include <algorithm>
#include <set>
#include <utility>

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
  std::vector<std::pair<KernelCode::Function*, Known*>> new_functions;
  std::set<int64_t> varying;
  for (KernelCode* kernel : kernels) {
    for (KernelCode::Function& function : kernel->functions) {
      const MarkedText& text = function.marked;
      std::deque<Known>& known = known_[text.skeleton];
      const size_t place = occurrences[text.skeleton]++;
      if (place == known.size()) {
        known.push_back({text.sizes, text.constants, std::vector<bool>(text.sizes.size()),
                         std::vector<bool>(text.constants.size())});
        new_functions.emplace_back(&function, &known.back());
        continue;
      }
      Known& mine = known[place];
      note_differences(mine.sizes, text.sizes, mine.size_varies);
      note_differences(mine.constants, text.constants, mine.constant_varies);
      use(mine, function);
      varying.insert(function.sizes.begin(), function.sizes.end());
    }
  }
  // The sizes of new functions that vary in others probably vary here, too.
  for (const auto& [function, known] : new_functions) {
    for (size_t i = 0; i < known->size_varies.size(); ++i)
      known->size_varies[i] = varying.contains(function->marked.sizes[i]);
    use(*known, *function);
  }
}

void FunctionFamily::use(const Known& known, KernelCode::Function& function) {
  if (any(known.size_varies) || any(known.constant_varies))
    function.read_numbers(known.size_varies, known.constant_varies);
}

}  // namespace bellows::compile_detail
