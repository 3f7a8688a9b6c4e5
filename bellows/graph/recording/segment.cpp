#include "bellows/graph/recording/segment.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/graph/program/program_builder.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {
namespace {

int64_t buffers_made(const Segment& segment) {
  int64_t result = 0;
  for (const Node* node : segment.nodes) {
    for (const Result& one : node->results)
      result += std::count_if(one.outputs.begin(), one.outputs.end(), [](const Output& output) { return output.made; });
  }
  return result;
}

}  // namespace

bool share_memory(const c10::StorageImpl& a, const c10::StorageImpl& b) {
  const auto* const x = static_cast<const char*>(a.data());
  const auto* const y = static_cast<const char*>(b.data());
  return x < y + b.nbytes() && y < x + a.nbytes();
}

bool Plan::inputs_overlap(BufferTable& buffers) const {
  for (const BufferId id : inputs) {
    const c10::StorageImpl& lent = *buffers[id].address;
    if (lent.allocator()) continue;  // memory of libtorch belongs to one storage only
    for (const BufferId other : inputs) {
      if (other != id && share_memory(lent, *buffers[other].address)) return true;
    }
  }
  return false;
}

void Plan::run(const Segment& segment, BufferTable& buffers, Explanation& counts) {
  const auto emptied = c10::make_scope_exit([this] {
    input_storages.clear();
    output_storages.clear();
  });
  output_storages.resize(outputs.size());  // neither allocates: make() reserved the memory
  for (const BufferId id : inputs) input_storages.push_back(std::move(buffers[id].real));
  ++counts.flushes;
  ++counts.program_runs;
  try {
    executable->run(input_storages, segment.numbers, output_storages);
  } catch (const std::exception& error) {
    hand_out(buffers, user_message(error));
    throw;
  }
  hand_out(buffers, "");
  counts.results += made;
  counts.never_seen += made - visible;
}

void Plan::hand_out(BufferTable& buffers, const std::string& error) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] < 0) continue;
    const auto held = buffers[outputs[i]].weak.lock();
    if (!held) continue;
    if (output_storages[i])
      tap::fulfil(*held, *output_storages[i].unsafeGetStorageImpl());
    else
      tap::abandon(
          *held, "this tensor has no value, because an operator of its region failed before it was computed: " + error);
  }
}

Plan* Plans::find(const Step* from, const std::vector<bool>& alive, size_t numbers) {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& plan) {
    return plan->from == from && plan->numbers == numbers && plan->alive == alive;
  });
  return found == all_.end() ? nullptr : found->get();
}

Plan* Plans::make(Backend& backend, const Step* from, const Segment& segment, std::vector<bool> alive,
                  BufferTable& buffers) {
  std::erase_if(all_, [&](const auto& plan) { return plan->from == from && plan->numbers < segment.numbers.size(); });
  if (made_ == most_made) return nullptr;
  ++made_;
  if (all_.size() == most_kept) all_.erase(all_.begin());
  auto plan = std::make_unique<Plan>();
  plan->from = from;
  plan->alive = std::move(alive);
  plan->numbers = segment.numbers.size();
  BuiltProgram built = build_program(segment.nodes, [&](BufferId id) { return buffers[id].weak.use_count() > 0; });
  plan->made = buffers_made(segment);
  plan->inputs = std::move(built.inputs);
  plan->outputs = std::move(built.outputs);
  plan->written.resize(plan->inputs.size());
  for (size_t i = 0; i < plan->outputs.size(); ++i) {
    const int input = built.program.outputs[i].input;
    if (input >= 0) {
      plan->outputs[i] = no_buffer;
      plan->written[input] = true;
    }
    plan->visible += plan->outputs[i] >= 0;
  }
  plan->input_storages.reserve(plan->inputs.size());
  plan->output_storages.reserve(plan->outputs.size());
  std::vector<c10::Storage> inputs;
  inputs.reserve(plan->inputs.size());
  for (const BufferId id : plan->inputs) inputs.push_back(buffers[id].real);
  try {
    plan->executable = backend.prepare(std::move(built.program), inputs);
  } catch (const std::exception& error) {
    log_warn("Region: no program could be prepared, so the operators run one by one: ", user_message(error));
  }
  all_.push_back(std::move(plan));
  return all_.back().get();
}

}  // namespace bellows::graph::detail
