#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bellows/inspect/module_map.h"
#include "bellows/inspect/op_info.h"
#include "bellows/tap/observer.h"

namespace bellows::inspect {

/// User scopes with this prefix name modules.
inline constexpr std::string_view module_scope_prefix = "module:";

/// The module of an operator call. Operators without parameters get a place that is settled later, when the next
/// module is known.
struct Place {
  int module = ModuleMap::root;
  int after = ModuleMap::root;  ///< the last module with parameters before it
  bool settled = false;
};
using PlacePtr = std::shared_ptr<Place>;

/// One operator, node or scope that is running. What the observers of this component keep of it.
struct Frame {
  tap::OpEvent::Kind kind = tap::OpEvent::Kind::op;
  const OpInfo* info = nullptr;  ///< operators only
  PlacePtr place;                ///< never null for operators
  bool backward = false;         ///< inside an autograd node that runs
  bool base = false;             ///< the operator as it is below autograd: the outermost that is not made of others
  bool hidden = false;           ///< called by a kernel: inside a base operator
  bool flops_above = false;      ///< an operator around it has a FLOP formula
  bool only_weights = false;     ///< all tensors it reads are a module's
};

/// Follows the operators of all threads and assigns each to a module: docs/inspect.md, "Modules". Private to the component.
/// Threads: not thread-safe: its observer's lock
class ModuleTracker {
 public:
  explicit ModuleTracker(ModuleMap map) : map_(std::move(map)) {}
  static tap::ObserverNeeds needs() {
    return {.operators = true, .backward_nodes = true, .user_scopes = true, .inputs = true, .outputs = true};
  }

  /// The frame of the call that begins; valid until leave().
  Frame& enter(const tap::OpEvent& event);
  /// The frame of the call that ends, or null if its beginning was not seen. Takes it off the stack.
  std::unique_ptr<Frame> leave(const tap::OpEvent& event);

  const ModuleMap& map() const { return map_; }
  /// The autograd node that this thread is in, or "".
  std::string node_name(uint64_t thread_id) const;

  /// The one place of a module that is known.
  PlacePtr settled(int module);

 private:
  struct Thread {
    std::vector<std::unique_ptr<Frame>> stack;
    std::vector<std::string> nodes;  // names of the autograd nodes that are running
    std::vector<int> scopes;         // ModuleScopes that are open
    int last = ModuleMap::root;
    PlacePtr gap;
    std::deque<PlacePtr> by_sequence;  // place of the operator that made node first_sequence + i
    int64_t first_sequence = -1;
  };
  PlacePtr place_of(const tap::OpEvent& event, Thread& thread, Frame& frame, const Frame* around);
  void enter_op(const tap::OpEvent& event, Thread& thread, Frame& frame, const Frame* around);
  int touched_module(const tap::OpEvent& event, Frame& frame) const;
  void remember_sequence(const tap::OpEvent& event, Thread& thread, const PlacePtr& place);
  PlacePtr forward_place(const tap::OpEvent& event) const;

  ModuleMap map_;
  std::unordered_map<uint64_t, Thread> threads_;
  std::vector<PlacePtr> settled_;
};

}  // namespace bellows::inspect
