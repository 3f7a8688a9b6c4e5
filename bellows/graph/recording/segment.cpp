#include "bellows/graph/recording/segment.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/graph/execution/program_runner.h"
#include "bellows/graph/program/program_builder.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::graph::detail {
namespace {

/// Makes later accesses to a pending tensor throw an error with the reason `error`.
void abandon(c10::StorageImpl& pending, const std::string& error) {
  tap::abandon(pending,
               "this tensor has no value, because an operator of its region failed before it was computed: " + error);
}

}  // namespace

bool share_memory(const c10::StorageImpl& a, const c10::StorageImpl& b) {
  const auto* const x = static_cast<const char*>(a.data());
  const auto* const y = static_cast<const char*>(b.data());
  return x < y + b.nbytes() && y < x + a.nbytes();
}

Plan::Plan(const Segment& segment, BufferTable& buffers, Program& program) : numbers(segment.numbers.size()) {
  BuiltProgram built = build_program(segment.operators, [&](BufferId id) { return buffers[id].weak.use_count() > 0; });
  inputs = std::move(built.inputs);
  outputs = std::move(built.outputs);
  written.resize(inputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int input = built.program.outputs[i].input;
    if (input >= 0) {
      outputs[i] = no_buffer;
      written[input] = true;
    }
    visible += outputs[i] >= 0;
  }
  for (const RecordedOperator* recorded : segment.operators) {
    made += std::count_if(recorded->results.begin(), recorded->results.end(),
                          [](const RecordedOperator::Result& one) { return one.made; });
  }
  input_storages.reserve(inputs.size());
  output_storages.reserve(outputs.size());
  program = std::move(built.program);
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
  output_storages.resize(outputs.size());  // neither allocates: the constructor reserved the memory
  for (const BufferId id : inputs) input_storages.push_back(std::move(buffers[id].real));
  ++counts.flushes;
  counts.program_runs += !in_order;
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
      abandon(*held, error);
  }
}

Plan* Plans::find(const Step* from, const std::vector<bool>& alive, size_t numbers, bool in_order) {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& plan) {
    return plan->from == from && plan->numbers == numbers && plan->in_order == in_order && plan->alive == alive;
  });
  return found == all_.end() ? nullptr : found->get();
}

Plan* Plans::make(Backend* backend, const Step* from, const Segment& segment, std::vector<bool> alive,
                  BufferTable& buffers) {
  std::erase_if(all_, [&](const auto& plan) { return plan->from == from && plan->numbers < segment.numbers.size(); });
  if (backend && made_ == most_made) return nullptr;
  made_ += backend != nullptr;
  const auto is_similar = [&](const auto& plan) { return plan->in_order == !backend; };
  if (std::count_if(all_.begin(), all_.end(), is_similar) == most_kept)
    all_.erase(std::find_if(all_.begin(), all_.end(), is_similar));
  Program program;
  auto plan = std::make_unique<Plan>(segment, buffers, program);
  plan->from = from;
  plan->alive = std::move(alive);
  plan->in_order = !backend;
  if (backend) {
    std::vector<c10::Storage> inputs;
    inputs.reserve(plan->inputs.size());
    for (const BufferId id : plan->inputs) inputs.push_back(buffers[id].real);
    try {
      plan->executable = backend->prepare(std::move(program), inputs);
    } catch (const std::exception& error) {
      log_warn("Region: no program could be prepared, so the operators run one by one: ", user_message(error));
    }
  } else {
    plan->executable = ProgramRunner::in_order(std::move(program));
  }
  all_.push_back(std::move(plan));
  return all_.back().get();
}

void run_once(const Segment& segment, BufferTable& buffers, Explanation& counts) {
  std::unique_ptr<Plan> plan;
  try {
    Program program;
    plan = std::make_unique<Plan>(segment, buffers, program);
    plan->in_order = true;
    plan->executable = ProgramRunner::in_order(std::move(program));
  } catch (const std::exception& error) {
    for (const RecordedOperator* recorded : segment.operators) {
      for_each_recorded_result(*recorded, [&](const Operand& operand, const RecordedOperator::Result& facts) {
        if (!facts.made) return;
        if (const auto pending = buffers[operand.value].weak.lock()) abandon(*pending, user_message(error));
      });
    }
    throw;
  }
  plan->run(segment, buffers, counts);
}

}  // namespace bellows::graph::detail
