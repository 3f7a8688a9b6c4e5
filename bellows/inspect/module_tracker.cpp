#include "bellows/inspect/module_tracker.h"

#include <algorithm>

#include "bellows/report/trace_writer.h"

namespace bellows::inspect {

namespace {

using Kind = tap::OpEvent::Kind;

/// Places of forward operators are stored for backward. If a graph has more nodes than this, the oldest ones lose their
/// module.
constexpr size_t remembered_nodes = 1 << 20;

}  // namespace

bool names_phase(const tap::OpEvent& event) {
  return event.kind == Kind::user_scope && !event.name.starts_with(module_scope_prefix) &&
         !event.name.starts_with("autograd::") && event.name != "detach" && event.name != "detach_" &&
         !waits_for_ranks(event);
}

bool waits_for_ranks(const tap::OpEvent& event) {
  return event.kind == Kind::user_scope && event.name.starts_with(wait_scope_prefix);
}

PlacePtr ModuleTracker::settled(int module) {
  if (settled_.size() <= static_cast<size_t>(module)) settled_.resize(module + 1);
  if (!settled_[module]) settled_[module] = std::make_shared<Place>(Place{module, module, true});
  return settled_[module];
}

int ModuleTracker::touched_module(const tap::OpEvent& event, Frame& frame) const {
  int touched = ModuleMap::nobody;
  bool others = false;
  for_each_tensor(event.inputs, [&](const at::Tensor& tensor) {
    const int owner = map_.owner(tensor);
    touched = map_.common(touched, owner);
    others = others || owner == ModuleMap::nobody;
  });
  frame.only_weights = touched != ModuleMap::nobody && !others;
  return touched;
}

PlacePtr ModuleTracker::place_of(const tap::OpEvent& event, Thread& thread, Frame& frame, const Frame* around) {
  const int touched = touched_module(event, frame);
  if (frame.backward && around->place) return around->place;
  if (frame.backward) return settled(std::max(touched, ModuleMap::root));
  if (!thread.scopes.empty() && (touched == ModuleMap::nobody || !map_.inside(touched, thread.scopes.back()))) {
    return settled(thread.scopes.back());
  }
  if (touched != ModuleMap::nobody) {
    if (thread.gap) {
      thread.gap->module = map_.common(thread.last, touched);
      thread.gap->settled = true;
      thread.gap = nullptr;
    }
    thread.last = touched;
    return settled(touched);
  }
  if (around && around->kind == Kind::op) return around->place;
  if (!thread.gap) thread.gap = std::make_shared<Place>(Place{ModuleMap::root, thread.last, false});
  return thread.gap;
}

void ModuleTracker::remember_sequence(const tap::OpEvent& event, Thread& thread, const PlacePtr& place) {
  if (event.sequence_number < 0) return;
  if (thread.by_sequence.empty()) thread.first_sequence = event.sequence_number;
  const int64_t at = event.sequence_number - thread.first_sequence;
  if (at < 0) return;
  if (static_cast<size_t>(at) > thread.by_sequence.size() + remembered_nodes) {  // after a long gap
    thread.by_sequence.clear();
    thread.first_sequence = event.sequence_number;
    thread.by_sequence.push_back(place);
    return;
  }
  if (thread.by_sequence.size() <= static_cast<size_t>(at)) thread.by_sequence.resize(at + 1);
  thread.by_sequence[at] = place;  // the node is created by the innermost and last operator before it
  for (; thread.by_sequence.size() > remembered_nodes; ++thread.first_sequence) thread.by_sequence.pop_front();
}

PlacePtr ModuleTracker::forward_place(const tap::OpEvent& event) const {
  const auto forward = threads_.find(event.forward_thread_id);
  if (forward == threads_.end() || event.sequence_number < 0) return nullptr;
  const Thread& thread = forward->second;
  const int64_t at = event.sequence_number - thread.first_sequence;
  return at >= 0 && static_cast<size_t>(at) < thread.by_sequence.size() ? thread.by_sequence[at] : nullptr;
}

void ModuleTracker::enter_op(const tap::OpEvent& event, Thread& thread, Frame& frame, const Frame* around) {
  frame.info = &op_info(event.name, event.overload);
  frame.place = place_of(event, thread, frame, around);
  frame.base = !frame.hidden && !frame.info->composite && !autocast_wraps(*frame.info, event.inputs);
  remember_sequence(event, thread, frame.place);
}

Frame& ModuleTracker::enter(const tap::OpEvent& event) {
  Thread& thread = threads_[event.thread_id];
  auto frame = std::make_unique<Frame>();
  const Frame* around = thread.stack.empty() ? nullptr : thread.stack.back().get();
  frame->kind = event.kind;
  frame->backward = event.kind == Kind::backward_node || !thread.nodes.empty();
  if (event.kind == Kind::backward_node) {
    frame->place = forward_place(event);
    thread.nodes.emplace_back(event.name);
  } else if (around) {
    frame->hidden = around->base || around->hidden;
    frame->flops_above = around->flops_above || (around->info && around->info->flops);
    frame->place = around->place;
  }
  if (event.kind == Kind::op) enter_op(event, thread, *frame, around);
  if (event.kind == Kind::user_scope && event.name.starts_with(module_scope_prefix)) {
    thread.scopes.push_back(map_.module(event.name.substr(module_scope_prefix.size())));
  }
  thread.stack.push_back(std::move(frame));
  return *thread.stack.back();
}

std::unique_ptr<Frame> ModuleTracker::leave(const tap::OpEvent& event) {
  Thread& thread = threads_[event.thread_id];
  if (thread.stack.empty() || thread.stack.back()->kind != event.kind) return nullptr;
  auto frame = std::move(thread.stack.back());
  thread.stack.pop_back();
  if (event.kind == Kind::backward_node) thread.nodes.pop_back();
  if (event.kind == Kind::user_scope && event.name.starts_with(module_scope_prefix)) thread.scopes.pop_back();
  if (frame->only_weights) {
    for_each_tensor(event.outputs, [&](const at::Tensor& tensor) {
      if (map_.owner(tensor) == ModuleMap::nobody) map_.adopt(tensor, frame->place->module);
    });
  }
  return frame;
}

std::string ModuleTracker::node_name(uint64_t thread_id) const {
  const auto thread = threads_.find(thread_id);
  return thread == threads_.end() || thread->second.nodes.empty() ? "" : thread->second.nodes.back();
}

}  // namespace bellows::inspect
