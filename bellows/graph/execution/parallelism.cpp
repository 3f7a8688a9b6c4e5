#include "bellows/graph/execution/parallelism.h"

#include <algorithm>

#include "bellows/graph/execution/schedule.h"
#include "bellows/graph/passes/pass.h"

namespace bellows::graph {

Parallelism parallelism(const Program& program, const std::function<double(const Instruction&)>& cost) {
  const detail::Schedule schedule(program);
  const size_t count = program.instructions.size();
  std::vector<int> level(count, 0), width(count + 1, 0);
  std::vector<double> until(count, 0);
  Parallelism result;
  for (size_t i = 0; i < count; ++i) {
    const Instruction& one = program.instructions[i];
    const double own = cost ? cost(one) : static_cast<double>(bytes_moved(one));
    for (const int need : schedule.needs(static_cast<int>(i))) {
      level[i] = std::max(level[i], level[need]);
      until[i] = std::max(until[i], until[need]);
    }
    ++level[i];
    until[i] += own;
    result.total += own;
    result.levels = std::max(result.levels, level[i]);
    result.longest = std::max(result.longest, until[i]);
    result.widest = std::max(result.widest, ++width[level[i]]);
  }
  return result;
}

}  // namespace bellows::graph
