#pragma once

#include "bellows/core/log.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

/// Internal: the clients of one kind of tap on a thread.
///
/// The clients are stored in c10::ThreadLocalDebugInfo, which is an immutable list. at::ThreadLocalState copies the
/// head of the list to other threads: autograd's workers, JIT continuations, and any thread that restores a captured
/// state. All these threads share the nodes, so nodes are immutable except for `active`. When a guard ends, it clears
/// `active`. No thread then calls the client, even if other lists still contain the node.
namespace bellows::tap {

template <class Client, uint8_t kind_number>
struct CarriedNode : c10::DebugInfoBase {
  explicit CarriedNode(std::shared_ptr<Client> the_client) : client(std::move(the_client)) {}

  std::shared_ptr<Client> client;
  std::atomic<bool> active{true};
  std::vector<CarriedNode*> all;  ///< oldest first, this node last; `below` keeps the older nodes alive
  std::shared_ptr<c10::ThreadLocalDebugInfo> below;  ///< the thread's list before this node
  const c10::ThreadLocalDebugInfo* head = nullptr;   ///< the thread's list with this node, for comparisons

  static constexpr auto kind = static_cast<c10::DebugInfoKind>(kind_number);

  /// The innermost node of this thread, or null if there is none.
  static CarriedNode* top() { return static_cast<CarriedNode*>(c10::ThreadLocalDebugInfo::get(kind)); }

  static void push(const std::shared_ptr<CarriedNode>& node) {
    if (const CarriedNode* older = top()) {
      for (CarriedNode* one : older->all) {
        if (one->active) node->all.push_back(one);
      }
    }
    node->all.push_back(node.get());
    node->below = c10::ThreadLocalDebugInfo::current();
    c10::ThreadLocalDebugInfo::_push(kind, node);
    node->head = c10::ThreadLocalDebugInfo::current().get();
  }

  /// Ends `node`. Removes `node` and all ended nodes directly below it from this thread's list.
  /// Params: guard – name of the guard, for error messages
  static void end(const std::shared_ptr<CarriedNode>& node, const char* guard) {
    node->active = false;
    if (!at_head(node.get())) {
      log_error(guard,
                ": destroyed out of order, or on another thread than it was made on. Its client gets no more calls. ",
                "Destroy guards in the reverse order of their making, on the thread that made them.");
      return;
    }
    for (CarriedNode* one = node.get(); one && !one->active && at_head(one); one = top()) {
      c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(std::shared_ptr<c10::ThreadLocalDebugInfo>(one->below));
    }
  }

 private:
  static bool at_head(const CarriedNode* node) {
    return top() == node && c10::ThreadLocalDebugInfo::current().get() == node->head;
  }
};

}  // namespace bellows::tap
