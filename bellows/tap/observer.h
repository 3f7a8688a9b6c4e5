#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows::tap {

/// One operator, autograd node or user scope while it runs. Valid only during the call that receives it.
struct OpEvent {
  enum class Kind { op, backward_node, torchscript, user_scope };

  Kind kind = Kind::op;
  std::string_view name;      ///< "aten::add", "AddmmBackward0", or the scope's text
  std::string_view overload;  ///< "Tensor", or "" for operators without overloads
  /// Set in before() if `needs().inputs`: the arguments in the schema's order, or the incoming gradients of a backward
  /// node.
  std::span<const c10::IValue> inputs;
  /// Set in after() if `needs().outputs`; empty if the operator threw.
  std::span<const c10::IValue> outputs;
  /// Forward: the number of the autograd node that is about to be created, or -1 below autograd. Backward node: the
  /// number that its forward operator had on thread `forward_thread_id`.
  int64_t sequence_number = -1;
  uint64_t thread_id = 0;          ///< libtorch's logical thread number
  uint64_t forward_thread_id = 0;  ///< backward nodes only
  double start_us = 0;             ///< trace_now_us() before the operator; set if `needs().times`

  /// Example: "aten::add.Tensor"
  /// Cost:    allocates one string
  std::string qualified_name() const;
};

/// The data that an observer requests. Data that no observer requests costs nothing.
struct ObserverNeeds {
  bool operators = true;
  bool backward_nodes = false;
  bool user_scopes = false;  ///< record_function scopes and TorchScript functions
  bool inputs = false;
  bool outputs = false;
  bool times = false;
};

/// Watches operators through at::RecordFunction without changing the execution: kernels and results are identical.
///
/// Composite operators are reported first, followed by their parts, nested: aten::linear, aten::addmm. In backward, the
/// operators of an autograd node are reported inside that node. Under an OpTap, an operator is still reported once.
/// Operators that an observer calls itself are not reported to any observer.
/// An observer cannot make an operator fail; use OpCheck for that. If before() or after() throws, this observer gets no
/// more calls. ObserverGuard::check() rethrows the exception; without that call, it is logged.
/// Threads: called on each thread where it is installed or to which its context was carried (autograd's workers,
///          tap::ContextGuard). Calls may be concurrent.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Called once, when the guard is created.
  virtual ObserverNeeds needs() const { return {}; }
  virtual void before(const OpEvent&) {}
  /// Also called when the operator threw.
  virtual void after(const OpEvent&) {}
};

/// Installs an observer on this thread while the guard lives. Observers can nest: before() runs in the order of
/// installation, after() in reverse order. After the guard's end, no thread calls the observer for new operators.
/// Threads: create and destroy the guard on the same thread, in nested order. Otherwise it still ends, and an error is
///          logged.
/// Cost:    a small fraction of an operator's own dispatch; figures: bench/taps
class ObserverGuard {
 public:
  /// Throws: c10::ValueError if `observer` is null
  explicit ObserverGuard(std::shared_ptr<Observer> observer);
  ~ObserverGuard();
  ObserverGuard(const ObserverGuard&) = delete;
  ObserverGuard& operator=(const ObserverGuard&) = delete;

  /// Rethrows the first exception of the observer, once.
  void check();

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
