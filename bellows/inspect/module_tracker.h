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

/// User scopes whose names have this prefix denote modules.
inline constexpr std::string_view module_scope_prefix = "module:";

/// Returns whether the event is a TraceScope that names a phase of the step, such as "forward". Modules, the nodes of
/// autograd, libtorch's detach() and waiting for other ranks have scopes, too, but are not phases.
bool names_phase(const tap::OpEvent& event);
/// Returns whether the event is a scope in which the thread waits for other ranks.
bool waits_for_ranks(const tap::OpEvent& event);

/// The module of an operator call. For operators without parameters, it is determined later, when the next module is
/// known.
struct Place {
  int module = ModuleMap::root;
  int after = ModuleMap::root;  ///< the previous module with parameters
  bool settled = false;
};
using PlacePtr = std::shared_ptr<Place>;

/// A running operator, autograd node or scope, with the data that the observers of this component need.
struct Frame {
  tap::OpEvent::Kind kind = tap::OpEvent::Kind::op;
  const OpInfo* info = nullptr;  ///< only for operators
  PlacePtr place;                ///< not null for operators
  bool backward = false;         ///< whether it runs inside an autograd node
  bool base = false;             ///< whether it is the outermost operator below autograd that is not composite
  bool hidden = false;           ///< whether a kernel called it, which means that it runs inside a base operator
  bool flops_above = false;      ///< whether an enclosing operator has a FLOP formula
  bool only_weights = false;     ///< whether all tensors that it reads belong to a module
};

/// Observes the operators of all threads and assigns each operator to a module (docs/inspect.md, "Modules"). Private to
/// the component.
/// Threads: not thread-safe; the observer that uses it must lock
class ModuleTracker {
 public:
  explicit ModuleTracker(ModuleMap map) : map_(std::move(map)) {}
  static tap::ObserverNeeds needs(bool times = false) {
    return {.operators = true,
            .backward_nodes = true,
            .user_scopes = true,
            .inputs = true,
            .outputs = true,
            .times = times};
  }

  /// Returns the frame of the call that starts. The reference is valid until leave().
  Frame& enter(const tap::OpEvent& event);
  /// Removes the frame of the call that ends from the stack, and returns it. Returns null if the start of the call was
  /// not observed.
  std::unique_ptr<Frame> leave(const tap::OpEvent& event);

  const ModuleMap& map() const { return map_; }
  /// Returns the name of the autograd node that runs on the thread; empty if there is none.
  std::string node_name(uint64_t thread_id) const;

  /// Returns the shared place object of a known module.
  PlacePtr settled(int module);

 private:
  struct Thread {
    std::vector<std::unique_ptr<Frame>> stack;
    std::vector<std::string> nodes;  // names of the running autograd nodes
    std::vector<int> scopes;         // open ModuleScopes
    int last = ModuleMap::root;
    PlacePtr gap;
    std::deque<PlacePtr> by_sequence;  // place of the operator that created node first_sequence + i
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
