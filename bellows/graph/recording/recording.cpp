#include "bellows/graph/recording/recording.h"

#include <algorithm>

namespace bellows::graph {

std::vector<BufferId> RecordedOperator::written() const {
  std::vector<BufferId> result;
  for (const int argument : op().writes) {
    for (const Operand& operand : instruction.arguments[argument].operands) {
      if (operand.value >= 0 && std::find(result.begin(), result.end(), operand.value) == result.end())
        result.push_back(operand.value);
    }
  }
  return result;
}

std::string Recording::to_text() const {
  std::vector<std::string> notes;
  notes.reserve(when.size());
  for (const When one : when) notes.emplace_back(one == When::later ? "" : one == When::now ? " [now]" : " [flush]");
  return program.to_text(notes);
}

}  // namespace bellows::graph
