#include "bellows/graph/replay/replayed_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

#include "bellows/core/error.h"
#include "bellows/graph/program/program_builder.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/graph/replay/sole_owner.h"

namespace bellows::graph::detail {
namespace {

const c10::StorageImpl* address_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

c10::Storage storage_of(const std::string& content) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  c10::Storage made(c10::Storage::use_byte_size_t(), content.size(), allocator->allocate(content.size()), allocator,
                    true);
  if (!content.empty()) std::memcpy(made.mutable_data(), content.data(), content.size());
  return made;
}

uint32_t version_of(const c10::TensorImpl& tensor) {
  const auto& counter = tensor.version_counter();
  return counter.enabled() ? counter.current_version() : 0;
}

const Refusal different_input{"", "the function uses a different tensor in each call, which is not an argument"};

std::string text_of(const c10::IValue& value) {
  return c10::str(value);
}

}  // namespace

CallStart::CallStart(std::span<const at::Tensor* const> the_arguments)
    : arguments(the_arguments), state(ThreadState::capture()) {
  for (const at::Tensor* argument : arguments)
    versions.push_back(argument->defined() ? version_of(*argument->unsafeGetTensorImpl()) : 0);
}

std::unique_ptr<ReplayedCall> ReplayedCall::of(const CallNotes& notes, const CallStart& start, const CallFrame& frame,
                                               Refusal& refusal) {
  refusal = {};
  if (!frame.unsupported.empty()) refusal.why = frame.unsupported;
  if (refusal.why.empty() && !notes.refused.empty()) refusal = {notes.refused_op, notes.refused};
  if (refusal.why.empty() && !notes.executable) refusal.why = "the function runs no operators that can be deferred";
  if (!refusal.why.empty()) return nullptr;
  std::unique_ptr<ReplayedCall> made(new ReplayedCall);
  made->state_ = start.state;
  made->values_ = frame.values;
  refusal = made->add_arguments(start);
  made->add_immediate(notes);
  made->add_program(notes);
  if (refusal.why.empty()) refusal = made->large_input();
  if (refusal.why.empty()) refusal = made->add_returned(notes, start, frame);
  if (refusal.why.empty()) refusal = made->add_kept(notes);
  made->add_watched(notes);
  made->places_.clear();
  return refusal.why.empty() ? std::move(made) : nullptr;
}

Refusal ReplayedCall::add_arguments(const CallStart& start) {
  for (size_t i = 0; i < start.arguments.size(); ++i) {
    const at::Tensor& tensor = *start.arguments[i];
    Argument argument{.defined = tensor.defined(), .first = static_cast<int>(i)};
    if (tensor.defined()) {
      if (!is_plain(tensor)) return {"", c10::str("argument ", i, " is no plain tensor")};
      if (tensor.requires_grad()) return {"", c10::str("argument ", i, " requires gradients")};
      argument.geometry = Geometry::of(tensor);
      argument.versions = version_of(*tensor.unsafeGetTensorImpl()) - start.versions[i];
      for (int other = static_cast<int>(i); other-- > 0;) {
        if (arguments_[other].defined && address_of(*start.arguments[other]) == address_of(tensor))
          argument.first = arguments_[other].first;
      }
    }
    arguments_.push_back(std::move(argument));
  }
  return {};
}

ReplayedCall::Place ReplayedCall::place_of(BufferId buffer, const CallNotes& notes) {
  if (buffer < 0) return {};
  const auto found = places_.find(buffer);
  return found != places_.end() ? found->second : places_.emplace(buffer, new_place(buffer, notes)).first->second;
}

ReplayedCall::Place ReplayedCall::new_place(BufferId buffer, const CallNotes& notes) {
  if (const CallNotes::Input* const input = notes.input(buffer)) {
    if (input->argument >= 0) return {Place::Kind::argument, input->argument};
    captured_.push_back({.storage = input->storage, .address = input->address});
    if (input->storage.expired()) {  // a new tensor in each call, such as a number that became a tensor
      captured_.back().lacks_content = !input->copied;
      captured_.back().content = input->content;
      captured_.back().constant = storage_of(input->content);
    }
    return {Place::Kind::captured, static_cast<int>(captured_.size()) - 1};
  }
  const auto made = notes.made_now.find(buffer);
  if (made == notes.made_now.end()) return {};
  if (!made->second.host_wrote) return {Place::Kind::ran_now, static_cast<int>(made_++)};
  constants_.push_back({.content = made->second.content, .storage = storage_of(made->second.content)});
  return {Place::Kind::constant, static_cast<int>(constants_.size()) - 1};
}

void ReplayedCall::mark_written(const Place& place) {
  if (place.kind == Place::Kind::constant) constants_[place.index].written = true;
  if (place.kind == Place::Kind::captured) captured_[place.index].written = true;
}

void ReplayedCall::add_immediate(const CallNotes& notes) {
  std::vector<RecordedOperator> operators = notes.ran_now;
  BufferId next = 0;
  for (const RecordedOperator& one : operators) next = std::max(next, one.buffers_after);
  for (RecordedOperator& one : operators) {
    if (one.op().reads_no_data) for_each_operand(one.instruction, [&](Operand& operand) { operand.value = next++; });
    RecordedOperator::Result* facts = one.results.data();
    for (Instruction::Result& result : one.instruction.results) {
      for (Operand& operand : result.operands) {
        RecordedOperator::Result& fact = *facts++;
        if (!fact.made || place_of(operand.value, notes).kind == Place::Kind::ran_now) continue;
        operand.value = no_buffer;  // host code wrote the content, so the buffer is an input of later operators
        fact.made = false;
      }
    }
  }
  std::vector<const RecordedOperator*> all;
  all.reserve(operators.size());
  for (const RecordedOperator& one : operators) all.push_back(&one);
  if (!operators.empty()) operators.back().buffers_after = next;
  BuiltProgram built = build_program(all, [](BufferId) { return true; });
  for (const BufferId buffer : built.inputs) immediate_.inputs.push_back(place_of(buffer, notes));
  for (size_t i = 0; i < built.outputs.size(); ++i) {
    const int input = built.program.outputs[i].input;
    if (input >= 0) mark_written(immediate_.inputs[input]);
    immediate_.outputs.push_back(input >= 0 ? Place() : place_of(built.outputs[i], notes));
  }
  immediate_.program = std::move(built.program);
}

void ReplayedCall::add_program(const CallNotes& notes) {
  executable_ = notes.executable;
  numbers_ = notes.numbers;
  number_ops_ = notes.number_ops;
  written_ = notes.written;
  for (size_t i = 0; i < notes.inputs.size(); ++i) {
    inputs_.push_back(place_of(notes.inputs[i], notes));
    if (written_[i]) mark_written(inputs_.back());
  }
  now_inputs_.reserve(inputs_.size());
  outputs_ = notes.outputs.size();
}

ReplayedCall::Place ReplayedCall::place_of_result(const at::Tensor& result, const CallNotes& notes) {
  for (size_t i = 0; i < notes.outputs.size(); ++i) {
    if (notes.outputs[i] >= 0 && notes.output_storages[i]._unsafe_get_target() == address_of(result))
      return {Place::Kind::output, static_cast<int>(i)};
  }
  for (const auto& [buffer, made] : notes.made_now) {
    if (made.storage._unsafe_get_target() == address_of(result)) return place_of(buffer, notes);
  }
  return {};
}

Refusal ReplayedCall::add_returned(const CallNotes& notes, const CallStart& start, const CallFrame& frame) {
  const SoleOwner owner(frame.returned);
  for (const at::Tensor& tensor : frame.returned) {
    Returned one{.defined = tensor.defined()};
    for (size_t i = 0; i < returned_.size() && one.same < 0; ++i) {
      if (frame.returned[i].is_same(tensor)) one.same = static_cast<int>(i);
    }
    for (size_t i = 0; i < start.arguments.size() && one.argument < 0; ++i) {
      if (start.arguments[i]->is_same(tensor)) one.argument = static_cast<int>(i);
    }
    if (one.defined && one.argument < 0) {
      if (!is_plain(tensor)) return {"", "the function returns a tensor that is no plain tensor"};
      if (tensor.requires_grad())
        return {"", "the function returns a tensor that requires gradients. Return the result of detach() instead"};
      one.place = place_of_result(tensor, notes);
      if (one.place.kind == Place::Kind::none)
        return {"", "the function returns a tensor that it did not compute, or a view of an argument"};
      if (!owner.owns(tensor)) return {"", "the function returns a tensor and also keeps a reference to it"};
      one.geometry = Geometry::of(tensor);
      one.counted = tensor.unsafeGetTensorImpl()->version_counter().enabled();
      mark_written(one.place);
    }
    returned_.push_back(std::move(one));
  }
  lengths_ = frame.lengths;
  return {};
}

Refusal ReplayedCall::add_kept(const CallNotes& notes) {
  const auto is_returned = [&](const c10::StorageImpl* storage) {
    return std::any_of(returned_.begin(), returned_.end(), [&](const Returned& one) {
      if (one.place.kind == Place::Kind::output)
        return notes.output_storages[one.place.index]._unsafe_get_target() == storage;
      return false;
    });
  };
  for (size_t i = 0; i < notes.outputs.size(); ++i) {
    const WeakStorage& storage = notes.output_storages[i];
    if (notes.outputs[i] < 0 || storage.expired() || is_returned(storage._unsafe_get_target())) continue;
    Kept kept{.output = static_cast<int>(i), .storage = storage};
    for (const CallNotes::Pending& one : notes.pending) {
      if (one.buffer == notes.outputs[i] && !one.tensor.expired()) kept.tensors.push_back(one.tensor);
    }
    kept_.push_back(std::move(kept));
  }
  for (const auto& [buffer, made] : notes.made_now) {
    const auto found = places_.find(buffer);
    const bool returned =
        found != places_.end() && std::any_of(returned_.begin(), returned_.end(),
                                              [&](const Returned& one) { return one.place == found->second; });
    if (!made.storage.expired() && !returned) return {made.op, "the function keeps a reference to its result"};
  }
  return {};
}

void ReplayedCall::add_watched(const CallNotes& notes) {
  for (const CallNotes::Seen& seen : notes.seen) {
    const auto tensor = seen.tensor.lock();
    if (!tensor) continue;
    const at::Tensor held(tensor);
    const at::Tensor& gradient = tensor->grad();
    watched_.push_back({.tensor = seen.tensor,
                        .storage = address_of(held),
                        .geometry = Geometry::of(held),
                        .requires_grad = tensor->requires_grad(),
                        .gradient = gradient.unsafeGetTensorImpl(),
                        .gradient_reference = WeakTensor(gradient.getIntrusivePtr()),
                        .versions = version_of(*tensor) - seen.version});
  }
  for (const Captured& one : captured_) own_storages_.push_back(one.address);
  for (const Kept& one : kept_) own_storages_.push_back(one.storage._unsafe_get_target());
  std::sort(own_storages_.begin(), own_storages_.end());
}

Refusal ReplayedCall::difference_from(const ReplayedCall& earlier) const {
  if (!(state_ == earlier.state_)) return {"", "the modes of autograd, autocast or libtorch differ between calls"};
  if (values_ != earlier.values_) return {"", "an argument that is no tensor differs between calls"};
  if (executable_ != earlier.executable_)
    return {"", "other operators run, or other results are still referenced, than in the previous call"};
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (same_constant(numbers_[i], earlier.numbers_[i])) continue;
    return {number_ops_[i]->name, c10::str("a number differs between calls: ", text_of(numbers_[i]), " instead of ",
                                           text_of(earlier.numbers_[i]))};
  }
  const auto same_argument = [](const Argument& a, const Argument& b) {
    return a.defined == b.defined && a.geometry == b.geometry && a.first == b.first;
  };
  if (!std::equal(arguments_.begin(), arguments_.end(), earlier.arguments_.begin(), earlier.arguments_.end(),
                  same_argument))
    return {"", "the arguments differ between calls in their sizes, strides or dtypes"};
  if (Refusal refusal = difference_of_inputs(earlier); !refusal.why.empty()) return refusal;
  if (Refusal refusal = difference_of_operators(earlier); !refusal.why.empty()) return refusal;
  const auto same_result = [](const Returned& a, const Returned& b) {
    return a.place == b.place && a.defined == b.defined && a.same == b.same && a.argument == b.argument &&
           a.geometry == b.geometry;
  };
  if (lengths_ != earlier.lengths_ ||
      !std::equal(returned_.begin(), returned_.end(), earlier.returned_.begin(), earlier.returned_.end(), same_result))
    return {"", "the returned tensors differ between calls"};
  for (const Kept& kept : earlier.kept_) {
    if (!kept.storage.expired()) return {"", "a result of the previous call is still referenced"};
  }
  return {};
}

/// Returns a refusal if each call has a new large input that is no argument.
Refusal ReplayedCall::large_input() const {
  const bool any =
      std::any_of(captured_.begin(), captured_.end(), [](const Captured& one) { return one.lacks_content; });
  return any ? different_input : Refusal();
}

Refusal ReplayedCall::difference_of_inputs(const ReplayedCall& earlier) const {
  if (inputs_ != earlier.inputs_ || captured_.size() != earlier.captured_.size()) return different_input;
  for (size_t i = 0; i < captured_.size(); ++i) {
    const Captured &mine = captured_[i], &before = earlier.captured_[i];
    const bool same = mine.constant ? before.constant && mine.content == before.content
                                    : !before.constant && mine.address == before.address;
    if (!same) return different_input;
  }
  for (size_t i = 0; i < constants_.size(); ++i) {
    if (i >= earlier.constants_.size() || constants_[i].content != earlier.constants_[i].content)
      return {"", "host code writes different numbers into a new tensor in each call"};
  }
  return {};
}

Refusal ReplayedCall::difference_of_operators(const ReplayedCall& earlier) const {
  const auto &mine = immediate_.program.instructions, &before = earlier.immediate_.program.instructions;
  const auto same_operands = [](const Instruction::Argument& a, const Instruction::Argument& b) {
    return std::equal(a.operands.begin(), a.operands.end(), b.operands.begin(), b.operands.end(),
                      [](const Operand& x, const Operand& y) { return x.value == y.value; });
  };
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto& arguments = mine[i].arguments;
    if (i >= before.size() || before[i].op != mine[i].op ||
        !std::equal(arguments.begin(), arguments.end(), before[i].arguments.begin(), before[i].arguments.end(),
                    same_operands))
      return {mine[i].op->name, "other operators run than in the previous call"};
    for (size_t a = 0; a < arguments.size(); ++a) {
      const c10::IValue &now = arguments[a].constant, &then = before[i].arguments[a].constant;
      if (arguments[a].is_tensors() || same_constant(now, then)) continue;
      return {mine[i].op->name,
              c10::str("an argument differs between calls: ", text_of(now), " instead of ", text_of(then))};
    }
  }
  if (immediate_.inputs != earlier.immediate_.inputs || immediate_.outputs != earlier.immediate_.outputs)
    return {"", "other operators run than in the previous call"};
  return {};
}

void ReplayedCall::note_contents(CallNotes& notes) const {
  constexpr size_t most_bytes = 1 << 20;
  for (const Captured& one : captured_) {
    const auto storage = one.storage.lock();
    if (storage && storage->nbytes() <= most_bytes) notes.note_before(*storage);
  }
}

std::string ReplayedCall::mismatch(const CallStart& start, const CallFrame& frame) const {
  if (!frame.unsupported.empty()) return frame.unsupported;
  if (frame.values != values_) return "an argument that is no tensor has changed";
  if (!(start.state == state_)) return "the modes of autograd, autocast or libtorch have changed";
  std::string reason = argument_mismatch(start);
  return reason.empty() ? captured_mismatch() : reason;
}

std::string ReplayedCall::argument_mismatch(const CallStart& start) const {
  if (start.arguments.size() != arguments_.size())
    return c10::str(start.arguments.size(), " tensor arguments instead of ", arguments_.size());
  bool borrowed = false;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& expected = arguments_[i];
    const at::Tensor& tensor = *start.arguments[i];
    if (tensor.defined() != expected.defined) return c10::str("argument ", i, " is defined in some calls only");
    if (!expected.defined) continue;
    if (!is_plain(tensor) || !expected.geometry.fits(tensor))
      return c10::str("argument ", i, ": ", expected.geometry.difference(tensor));
    if (tensor.requires_grad()) return c10::str("argument ", i, " requires gradients");
    const c10::StorageImpl* const storage = address_of(tensor);
    int first = static_cast<int>(i);
    for (int other = first; other-- > 0;) {
      if (arguments_[other].defined && address_of(*start.arguments[other]) == storage) first = arguments_[other].first;
    }
    if (first != expected.first) return c10::str("argument ", i, " shares memory with other arguments than before");
    if (std::binary_search(own_storages_.begin(), own_storages_.end(), storage))
      return c10::str("argument ", i, " is a tensor that the function also uses or sets itself");
    borrowed = borrowed || !storage->allocator();
  }
  return borrowed && overlaps(start) ? "two arguments share borrowed memory" : "";
}

/// Returns whether an argument with borrowed memory (from_blob) shares it with another tensor of the call.
bool ReplayedCall::overlaps(const CallStart& start) const {
  std::vector<const c10::StorageImpl*> all(own_storages_.begin(), own_storages_.end());
  const size_t own = all.size();
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].defined && arguments_[i].first == static_cast<int>(i))
      all.push_back(address_of(*start.arguments[i]));
  }
  for (size_t i = own; i < all.size(); ++i) {
    if (all[i]->allocator()) continue;  // memory of libtorch belongs to one storage only
    for (size_t other = 0; other < all.size(); ++other) {
      if (other != i && share_memory(*all[i], *all[other])) return true;
    }
  }
  return false;
}

std::string ReplayedCall::captured_mismatch() const {
  for (const Watched& one : watched_) {
    if (one.tensor.expired()) return "a tensor that the function uses has been released";
    const c10::TensorImpl& tensor = *one.tensor._unsafe_get_target();
    if (tensor.unsafe_storage().unsafeGetStorageImpl() != one.storage)
      return "a tensor that the function uses has new memory";
    if (tensor.requires_grad() != one.requires_grad) return "requires_grad of a tensor has changed";
    if (tensor.grad().unsafeGetTensorImpl() != one.gradient)
      return "the gradient of a tensor has been replaced or released since the previous call";
    if (!one.geometry.fits(tensor)) return "a tensor that the function uses has other sizes, strides or keys";
  }
  for (const Captured& one : captured_) {
    if (!one.constant && one.storage.expired()) return "a tensor that the function uses has been released";
  }
  for (const Kept& one : kept_) {
    if (one.storage.expired()) return "a tensor that the function had set has been released";
  }
  return "";
}

void ReplayedCall::run(const CallStart& start, CallFrame& frame) {
  struct Cleared {
    ReplayedCall& self;
    ~Cleared() {
      for (auto* const list : {&self.now_arguments_, &self.now_captured_, &self.now_constants_, &self.now_made_,
                               &self.now_inputs_, &self.now_outputs_})
        list->clear();
    }
  } cleared{*this};
  const tap::OpenStorages open;
  tap::StorageHolds holds;
  take_inputs(start, open.all_open() ? nullptr : &holds);
  holds.open();
  increase_versions(start);
  run_immediate();
  for (const Place& place : inputs_) now_inputs_.push_back(storage_at(place));
  now_outputs_.resize(outputs_);
  release_kept();
  try {
    executable_->run(now_inputs_, numbers_, now_outputs_);
  } catch (const std::exception& error) {
    hand_out(user_message(error));
    throw;
  }
  set_returned(start, frame);
  hand_out("");
}

void ReplayedCall::take_inputs(const CallStart& start, tap::StorageHolds* holds) {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    now_arguments_.push_back(arguments_[i].defined ? start.arguments[i]->storage() : c10::Storage());
    const bool first = arguments_[i].defined && arguments_[i].first == static_cast<int>(i);
    if (holds && first) holds->hold(now_arguments_.back(), false);
  }
  for (const Captured& one : captured_) {
    if (one.constant) {
      now_captured_.push_back(one.written ? storage_of(one.content) : one.constant);
      continue;
    }
    auto storage = one.storage.lock();
    TORCH_CHECK(storage, "compile: another thread released a tensor that a replayed function uses.");
    now_captured_.emplace_back(std::move(storage));
    if (holds) holds->hold(now_captured_.back(), false);
  }
  for (const Constant& one : constants_) now_constants_.push_back(one.written ? storage_of(one.content) : one.storage);
  now_made_.resize(made_);
}

const c10::Storage& ReplayedCall::storage_at(const Place& place) const {
  switch (place.kind) {
    case Place::Kind::argument:
      return now_arguments_[place.index];
    case Place::Kind::captured:
      return now_captured_[place.index];
    case Place::Kind::ran_now:
      return now_made_[place.index];
    case Place::Kind::constant:
      return now_constants_[place.index];
    case Place::Kind::output:
      return now_outputs_[place.index];
    default:
      TORCH_INTERNAL_ASSERT(false, "a place without a storage");
  }
}

void ReplayedCall::run_immediate() {
  const Program& program = immediate_.program;
  if (program.instructions.empty()) return;
  if (!immediate_.runner) immediate_.runner = ProgramRunner::in_order(program);
  for (size_t i = 0; i < immediate_.inputs.size(); ++i) {
    const Program::ValueFacts& facts = program.values[program.inputs[i]];
    now_inputs_.push_back(immediate_.inputs[i].kind == Place::Kind::none
                              ? c10::Storage(tap::make_pending_storage(facts.nbytes, facts.geometry.device))
                              : storage_at(immediate_.inputs[i]));
  }
  now_outputs_.resize(immediate_.outputs.size());
  immediate_.runner->run(now_inputs_, {}, now_outputs_);
  for (size_t i = 0; i < immediate_.outputs.size(); ++i) {
    if (immediate_.outputs[i].kind == Place::Kind::ran_now)
      now_made_[immediate_.outputs[i].index] = std::move(now_outputs_[i]);
  }
  now_inputs_.clear();
  now_outputs_.clear();
}

void ReplayedCall::increase_versions(const CallStart& start) {
  const auto increase = [](const c10::TensorImpl& tensor, uint32_t by) {
    c10::VariableVersion counter = tensor.version_counter();  // shared with the tensor
    if (by > 0 && counter.enabled()) counter.set_version(counter.current_version() + by);
  };
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].defined) increase(*start.arguments[i]->unsafeGetTensorImpl(), arguments_[i].versions);
  }
  for (const Watched& one : watched_) {
    if (one.versions == 0) continue;
    if (const auto tensor = one.tensor.lock()) increase(*tensor, one.versions);
  }
  for (const Kept& kept : kept_) {
    for (const WeakTensor& one : kept.tensors) {
      if (const auto tensor = one.lock()) increase(*tensor, 1);
    }
  }
}

/// Frees the previous content of the results that stay referenced. In a followed call, the function does so before its
/// program runs.
void ReplayedCall::release_kept() {
  for (const Kept& one : kept_) {
    if (const auto storage = one.storage.lock()) storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  }
}

void ReplayedCall::hand_out(const std::string& error) {
  for (const Kept& one : kept_) {
    const auto storage = one.storage.lock();
    if (!storage) continue;
    c10::Storage& computed = now_outputs_[one.output];
    if (computed)
      tap::fulfil(*storage, *computed.unsafeGetStorageImpl());
    else
      tap::abandon(*storage, "this tensor has no value, because an operator failed before it was computed: " + error);
  }
}

void ReplayedCall::set_returned(const CallStart& start, CallFrame& frame) const {
  frame.returned.clear();
  frame.returned.reserve(returned_.size());
  for (const Returned& one : returned_) {
    if (!one.defined) {
      frame.returned.emplace_back();
    } else if (one.argument >= 0) {
      frame.returned.push_back(*start.arguments[one.argument]);
    } else if (one.same >= 0) {
      frame.returned.push_back(frame.returned[one.same]);
    } else {
      frame.returned.push_back(one.geometry.over(storage_at(one.place), one.counted));
    }
  }
  frame.lengths = lengths_;
}

}  // namespace bellows::graph::detail
