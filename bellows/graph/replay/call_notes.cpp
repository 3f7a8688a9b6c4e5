#include "bellows/graph/replay/call_notes.h"

#include <algorithm>
#include <cstring>

namespace bellows::graph::detail {
namespace {

constexpr size_t most_copied_input = 4096, most_copied_from_host = 1 << 20;

char* data_of(const c10::StorageImpl& storage) {
  return static_cast<char*>(const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get());
}

uint64_t hash_of(const c10::StorageImpl& storage) {
  const char* data = data_of(storage);
  uint64_t hash = storage.nbytes();
  for (size_t left = storage.nbytes(); left > 0;) {
    uint64_t word = 0;
    const size_t taken = std::min(left, sizeof word);
    std::memcpy(&word, data, taken);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
    data += taken;
    left -= taken;
  }
  return hash;
}

bool is_readable(const c10::StorageImpl& storage) {
  return storage.device().is_cpu() && (data_of(storage) || storage.nbytes() == 0);
}

/// Returns whether an operator returns memory with undefined content.
bool is_uninitialized(const OperatorFacts& op) {
  return op.name.rfind("aten::empty", 0) == 0 || op.name.rfind("aten::new_empty", 0) == 0;
}

}  // namespace

std::string bytes_of(const c10::StorageImpl& storage) {
  return {data_of(storage), storage.nbytes()};
}

CallNotes::CallNotes(std::span<const at::Tensor* const> arguments, bool poison)
    : arguments_(arguments), poison_(poison) {
  for (const at::Tensor* argument : arguments_) {
    if (argument->defined() && is_plain(*argument)) note_before(*argument->storage().unsafeGetStorageImpl());
  }
}

void CallNotes::note_before(const c10::StorageImpl& storage) {
  if (is_readable(storage)) before_.emplace(&storage, hash_of(storage));
}

void CallNotes::find_earlier_write(const c10::StorageImpl& storage) {
  const auto found = before_.find(&storage);
  if (found != before_.end() && is_readable(storage) && hash_of(storage) != found->second)
    refuse("", "host code of the function writes into a tensor that an operator then uses");
}

void CallNotes::refuse(const std::string& op, const std::string& why) {
  if (!refused.empty()) return;
  refused_op = op;
  refused = why;
}

void CallNotes::set_origin(BufferId buffer, Origin origin) {
  if (origins_.size() <= static_cast<size_t>(buffer)) origins_.resize(buffer + 1, Origin::unknown);
  origins_[buffer] = origin;
}

const CallNotes::Input* CallNotes::input(BufferId buffer) const {
  const auto found = input_of_.find(buffer);
  return found == input_of_.end() ? nullptr : &inputs_[found->second];
}

void CallNotes::note_arguments(const Instruction& instruction, const Arrival& arrival) {
  const BufferId* next = arrival.buffers.data();
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    if (!instruction.arguments[i].is_tensors()) continue;
    for_each_tensor(arrival.arguments[i], [&](const at::Tensor& tensor) {
      const BufferId buffer = *next++;
      if (buffer >= 0) note_input(buffer, tensor);
    });
  }
}

/// Notes a tensor if its buffer existed before the call.
void CallNotes::note_input(BufferId buffer, const at::Tensor& tensor) {
  if (origin(buffer) == Origin::unknown) {
    const c10::StorageImpl* const address = tensor.storage().unsafeGetStorageImpl();
    Input input{.buffer = buffer, .address = address, .storage = tensor.storage().getWeakStorageImpl()};
    for (size_t i = 0; i < arguments_.size() && input.argument < 0; ++i) {
      const at::Tensor& argument = *arguments_[i];
      if (argument.defined() && is_plain(argument) && argument.storage().unsafeGetStorageImpl() == address)
        input.argument = static_cast<int>(i);
    }
    if (!tensor.is_cpu()) refuse("", "a tensor is not on the CPU");
    find_earlier_write(*address);
    input.copied = input.argument < 0 && is_readable(*address) && address->nbytes() <= most_copied_input;
    if (input.copied) input.content = bytes_of(*address);
    set_origin(buffer, Origin::input);
    input_of_[buffer] = inputs_.size();
    inputs_.push_back(std::move(input));
  }
  if (origin(buffer) != Origin::input || inputs_[input_of_[buffer]].argument >= 0) return;
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!seen_of_.emplace(&impl, seen.size()).second) return;
  const auto& counter = impl.version_counter();
  seen.push_back({&impl, WeakTensor(tensor.getIntrusivePtr()), counter.enabled() ? counter.current_version() : 0});
}

void CallNotes::note_pending(BufferId buffer, const at::Tensor& tensor) {
  set_origin(buffer, Origin::pending);
  pending.push_back({buffer, WeakTensor(tensor.getIntrusivePtr())});
}

void CallNotes::note_view(BufferId buffer, const at::Tensor& tensor) {
  if (origin(buffer) == Origin::pending) pending.push_back({buffer, WeakTensor(tensor.getIntrusivePtr())});
}

void CallNotes::note_ran_now(const RecordedOperator& recorded, std::span<const c10::IValue> arguments,
                             std::span<const c10::IValue> results) {
  const OperatorFacts& op = recorded.op();
  if (recorded.when == When::flush) return refuse(op.name, "runs immediately, because the host needs a value of it");
  if (op.changes_metadata) {
    // A tensor that the call made has its final sizes when it is returned.
    const BufferId buffer = recorded.instruction.arguments.at(0).operands.at(0).value;
    if (buffer < 0 || origin(buffer) != Origin::pending)
      refuse(op.name, "changes the sizes of a tensor that exists before the program runs");
    return;
  }
  RecordedOperator ran = recorded;
  for (size_t i = 0; i < arguments.size(); ++i) {
    Instruction::Argument& argument = ran.instruction.arguments[i];
    argument.number = -1;
    if (argument.is_tensors()) continue;
    argument.constant = arguments[i];
    if (!comparable(arguments[i])) refuse(op.name, "has an argument that cannot be compared between calls");
  }
  const RecordedOperator::Result* facts = ran.results.data();
  for (size_t i = 0; i < results.size(); ++i) {
    size_t at = 0;
    for_each_tensor(results[i], [&](const at::Tensor& tensor) {
      const BufferId buffer = ran.instruction.results[i].operands.at(at++).value;
      if (!(facts++)->made) return;
      set_origin(buffer, Origin::now);
      made_now.insert_or_assign(buffer, MadeNow{.op = op.name, .storage = tensor.storage().getWeakStorageImpl()});
      note_content(buffer, tensor, op);
    });
  }
  for (const int argument : op.writes) {
    size_t at = 0;
    for_each_tensor(arguments[argument], [&](const at::Tensor& tensor) {
      const BufferId buffer = ran.instruction.arguments[argument].operands.at(at++).value;
      if (buffer >= 0 && origin(buffer) == Origin::now) note_content(buffer, tensor, op);
    });
  }
  ran_now.push_back(std::move(ran));
}

/// Notes the content that an operator gave a buffer. If the content differs when the program runs, host code wrote it.
/// New memory often still has the content of the previous call, so undefined content is replaced, with another pattern
/// in each call.
void CallNotes::note_content(BufferId buffer, const at::Tensor& tensor, const OperatorFacts& op) {
  if (!tensor.is_cpu()) return refuse(op.name, "a tensor is not on the CPU");
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (is_uninitialized(op) && storage.nbytes() > 0)
    std::memset(data_of(storage), poison_ ? 0xA5 : 0x5A, storage.nbytes());
  made_now.at(buffer).hash = hash_of(storage);
}

void CallNotes::find_host_writes() {
  if (!refused.empty()) return;  // some memory may not be readable
  for (auto& [buffer, made] : made_now) {
    const auto storage = made.storage.lock();
    if (!storage || hash_of(*storage) == made.hash) continue;
    made.host_wrote = true;
    if (storage->nbytes() > most_copied_from_host)
      refuse(made.op, "host code writes more than 1 MiB into its result in each call");
    else
      made.content = bytes_of(*storage);
  }
}

void CallNotes::note_run(const Plan* plan, const Segment& segment, BufferTable& buffers) {
  if (!plan || plan->in_order) return refuse("", "the operators run one by one instead of as a program");
  executable = plan->executable;
  numbers = segment.numbers;
  for (const RecordedOperator* recorded : segment.operators) {
    for (const Instruction::Argument& argument : recorded->instruction.arguments) {
      if (argument.number >= 0) number_ops.push_back(&recorded->op());
    }
  }
  inputs = plan->inputs;
  outputs = plan->outputs;
  written = plan->written;
  output_storages.reserve(outputs.size());
  for (const BufferId id : outputs) {
    // A weak reference to no storage cannot be created, so written outputs refer to their input.
    const BufferId of = id >= 0 ? id : inputs.at(0);
    output_storages.push_back(buffers[of].weak);
  }
  find_host_writes();
}

}  // namespace bellows::graph::detail
