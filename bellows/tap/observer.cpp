#include "bellows/tap/observer.h"

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/report/trace_writer.h"
#include "bellows/tap/carried_stack.h"
#include "bellows/tap/redispatch.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <exception>

namespace bellows::tap {
namespace {

/// An installed observer and its state.
struct Watch {
  explicit Watch(std::shared_ptr<Observer> the_observer)
      : observer(std::move(the_observer)), needs(observer->needs()) {}

  bool wants(OpEvent::Kind kind) const {
    if (kind == OpEvent::Kind::op) return needs.operators;
    if (kind == OpEvent::Kind::backward_node) return needs.backward_nodes;
    return needs.user_scopes;
  }

  const std::shared_ptr<Observer> observer;
  const ObserverNeeds needs;
  std::atomic<bool> failed{false};
  Mutex mutex;
  std::exception_ptr failure BELLOWS_GUARDED_BY(mutex);
};

using WatchNode = CarriedNode<Watch, 0xB2>;

/// An event between its start and its end. Holds the list of observers that received the start.
struct Pending final : at::ObserverContext {
  OpEvent event;
  std::shared_ptr<c10::ThreadLocalDebugInfo> list;
  WatchNode* top = nullptr;
};

thread_local bool inside_observer = false;

/// Active during calls of observers: operators that they call are neither observed nor recorded by autograd.
struct InsideObserver {
  InsideObserver() { inside_observer = true; }
  ~InsideObserver() { inside_observer = false; }
  c10::NoGradGuard no_grad;
};

/// libtorch also opens operator scopes for things that are not operators: "autograd::engine::evaluate_function:
/// AddBackward0", "PythonDispatchMode". Operators have names of the form "namespace::name".
bool is_operator_name(const char* name) {
  return std::strstr(name, "::") && !std::strchr(name, ' ');
}

OpEvent::Kind kind_of(const at::RecordFunction& function) {
  switch (function.scope()) {
    case at::RecordScope::BACKWARD_FUNCTION:
      return OpEvent::Kind::backward_node;
    case at::RecordScope::TORCHSCRIPT_FUNCTION:
      return OpEvent::Kind::torchscript;
    case at::RecordScope::USER_SCOPE:
      return OpEvent::Kind::user_scope;
    default:
      return is_operator_name(function.name()) ? OpEvent::Kind::op : OpEvent::Kind::user_scope;
  }
}

/// True if an OpTap's next() dispatches the operator again. Its call was observed already.
bool is_redispatch(const at::RecordFunction& function) {
  if (!redispatched_operator || function.name() != redispatched_operator) return false;
  redispatched_operator = nullptr;
  return true;
}

/// RecordFunction swallows exceptions. They are therefore stored for check().
template <class Call>
void call_observer(WatchNode& node, OpEvent::Kind kind, const Call& call) {
  if (!node.active || node.client->failed || !node.client->wants(kind)) return;
  try {
    call(*node.client->observer);
  } catch (...) {
    node.client->failed = true;
    MutexLock lock(node.client->mutex);
    if (!node.client->failure) node.client->failure = std::current_exception();
  }
}

void fill_names(OpEvent& event, const at::RecordFunction& function) {
  event.name = function.name();
  event.overload = function.overload_name();
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  if (is_redispatch(function)) return nullptr;
  WatchNode* top = inside_observer ? nullptr : WatchNode::top();
  if (!top) return nullptr;
  auto pending = std::make_unique<Pending>();
  pending->list = c10::ThreadLocalDebugInfo::current();
  pending->top = top;
  OpEvent& event = pending->event;
  event.kind = kind_of(function);
  fill_names(event, function);
  event.sequence_number = function.seqNr();
  event.thread_id = function.threadId();
  event.forward_thread_id = function.forwardThreadId();
  if (function.needsInputs()) event.inputs = {function.inputs().data(), function.inputs().size()};
  bool times = false;
  for (const WatchNode* node : top->all) times |= node->client->needs.times;
  if (times) event.start_us = trace_now_us();
  InsideObserver inside;
  for (WatchNode* node : top->all) {
    call_observer(*node, event.kind, [&](Observer& observer) { observer.before(event); });
  }
  event.inputs = {};
  return pending;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* pending = static_cast<Pending*>(context);
  if (!pending) return;
  OpEvent& event = pending->event;
  if (function.needsOutputs()) event.outputs = function.outputs();
  InsideObserver inside;
  const auto& nodes = pending->top->all;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    call_observer(**node, event.kind, [&](Observer& observer) { observer.after(event); });
  }
}

at::RecordFunctionCallback callback_for(const ObserverNeeds& needs) {
  std::unordered_set<at::RecordScope> scopes;
  if (needs.operators) scopes.insert(at::RecordScope::FUNCTION);
  if (needs.backward_nodes) scopes.insert(at::RecordScope::BACKWARD_FUNCTION);
  if (needs.user_scopes) {
    scopes.insert({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::TORCHSCRIPT_FUNCTION});
  }
  return at::RecordFunctionCallback(&on_start, &on_end)
      .needsInputs(needs.inputs)
      .needsOutputs(needs.outputs)
      .scopes(scopes);
}

/// One callback serves all observers of a thread, so that we control their order. It requests the union of their needs.
void refresh_callback() {
  for (const auto& entry : at::get_record_function_tls_().sorted_tls_callbacks_) {
    if (entry.callback_.start() == &on_start) {
      at::removeCallback(entry.handle_);
      break;
    }
  }
  ObserverNeeds all{.operators = false};
  if (const WatchNode* top = WatchNode::top()) {
    for (const WatchNode* node : top->all) {
      if (!node->active) continue;
      const ObserverNeeds& one = node->client->needs;
      all.operators |= one.operators;
      all.backward_nodes |= one.backward_nodes;
      all.user_scopes |= one.user_scopes;
      all.inputs |= one.inputs;
      all.outputs |= one.outputs;
    }
  }
  if (all.operators || all.backward_nodes || all.user_scopes) at::addThreadLocalCallback(callback_for(all));
}

}  // namespace

std::string OpEvent::qualified_name() const {
  std::string result(name);
  if (!overload.empty()) result.append(".").append(overload);
  return result;
}

ObserverGuard::ObserverGuard(std::shared_ptr<Observer> observer) {
  TORCH_CHECK_VALUE(observer, "ObserverGuard: expected an observer, found null. Pass a std::make_shared<…>().");
  auto node = std::make_shared<WatchNode>(std::make_shared<Watch>(std::move(observer)));
  node_ = node;
  WatchNode::push(node);
  refresh_callback();
}

ObserverGuard::~ObserverGuard() {
  WatchNode::end(std::static_pointer_cast<WatchNode>(node_), "ObserverGuard");
  refresh_callback();
  try {
    check();
  } catch (const std::exception& error) {
    log_error("ObserverGuard: the observer threw an exception, and check() was not called: ", user_message(error));
  } catch (...) {
    log_error(
        "ObserverGuard: the observer threw an exception that is not a std::exception, and check() was not called");
  }
}

void ObserverGuard::check() {
  Watch& watch = *static_cast<WatchNode*>(node_.get())->client;
  UniqueLock lock(watch.mutex);
  std::exception_ptr failure = std::exchange(watch.failure, nullptr);
  lock.unlock();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace bellows::tap
