#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows::tap {

/// One operator, autograd node or user scope while it runs. Valid during the call that gets it.
struct OpEvent {
  enum class Kind { op, backward_node, torchscript, user_scope };

  Kind kind = Kind::op;
  std::string_view name;      ///< "aten::add", "AddmmBackward0", or the scope's text
  std::string_view overload;  ///< "Tensor"; "" where there is none
  /// In before(), when asked for: arguments in the schema's order; of a backward node, its incoming gradients.
  std::span<const c10::IValue> inputs;
  /// In after(), when asked for; empty if the operator threw.
  std::span<const c10::IValue> outputs;
  /// Forward: the number of the autograd node about to be made, -1 below autograd. Backward node: the number that its
  /// forward operator had on thread `forward_thread_id`.
  int64_t sequence_number = -1;
  uint64_t thread_id = 0;          ///< libtorch's logical thread number
  uint64_t forward_thread_id = 0;  ///< backward nodes only
  double start_us = 0;             ///< trace_now_us() before the operator, when `times` was asked for

  /// "aten::add.Tensor".
  /// Cost:     one string
  std::string qualified_name() const;
};

/// What an observer wants to see. Each thing that no observer wants is not paid for.
struct ObserverNeeds {
  bool operators = true;
  bool backward_nodes = false;
  bool user_scopes = false;  ///< record_function scopes and TorchScript functions
  bool inputs = false;
  bool outputs = false;
  bool times = false;
};

/// Watches operators through at::RecordFunction and changes nothing that runs: same kernels, same bits.
///
/// Composite operators arrive whole and then their parts, nested: aten::linear, aten::addmm. In backward the operators
/// of each autograd node arrive inside its node. Under an OpTap an operator is still observed once. Operators that an
/// observer itself issues are not observed by any observer.
/// An observer cannot make an operator fail; a client that must is an OpCheck. An exception that leaves before() or
/// after() is kept, ends this observer's calls, and is thrown by ObserverGuard::check() (logged if nobody asks).
/// Threads: called on each thread where it is installed, or carried to: autograd's workers, tap::ContextGuard. Calls
///          may be concurrent.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Asked once, when the guard is made.
  virtual ObserverNeeds needs() const { return {}; }
  virtual void before(const OpEvent&) {}
  /// Also called when the operator threw.
  virtual void after(const OpEvent&) {}
};

/// Installs an observer on this thread while it lives. Several nest: before() runs in the order of installation,
/// after() in the reverse order. After the guard's end no operator is observed, on any thread.
/// Threads: make and destroy it on one thread, in nested order; otherwise it still ends, and the log says so.
/// Cost:    a small part of what an operator's own dispatch costs; figures: bench/taps
class ObserverGuard {
 public:
  /// Throws: c10::ValueError – null
  explicit ObserverGuard(std::shared_ptr<Observer> observer);
  ~ObserverGuard();
  ObserverGuard(const ObserverGuard&) = delete;
  ObserverGuard& operator=(const ObserverGuard&) = delete;

  /// Rethrows the first exception that left the observer, once.
  void check();

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
