#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bellows::tap {

/// An operator, autograd node or user scope that is running. The event is valid only during the call of the observer
/// that receives it.
struct OpEvent {
  enum class Kind { op, backward_node, torchscript, user_scope };

  Kind kind = Kind::op;
  std::string_view name;      ///< such as "aten::add" or "AddmmBackward0", or the text of a user scope
  std::string_view overload;  ///< such as "Tensor"; empty for operators without overloads
  /// Set in before() if `needs().inputs`. Contains the arguments in the order of the schema, or the incoming gradients
  /// of a backward node.
  std::span<const c10::IValue> inputs;
  /// Set in after() if `needs().outputs`. Empty if the operator threw an exception.
  std::span<const c10::IValue> outputs;
  /// For an operator: the number of the autograd node that the operator will create, or -1 below autograd. For a
  /// backward node: the number that its forward operator had on thread `forward_thread_id`.
  int64_t sequence_number = -1;
  uint64_t thread_id = 0;          ///< libtorch's logical thread number
  uint64_t forward_thread_id = 0;  ///< backward nodes only
  double start_us = 0;             ///< trace_now_us() when the operator starts; set if `needs().times`

  /// Returns a name such as "aten::add.Tensor".
  /// Cost: allocates one string
  std::string qualified_name() const;
};

/// The data that an observer requests. Data that no observer requests is not collected.
struct ObserverNeeds {
  bool operators = true;
  bool backward_nodes = false;
  bool user_scopes = false;  ///< record_function scopes and TorchScript functions
  bool inputs = false;
  bool outputs = false;
  bool times = false;
};

/// Watches operators through at::RecordFunction without changing their execution. Kernels and results stay identical.
///
/// - A composite operator is reported before its parts, which are nested within it. For example, aten::addmm is nested
///   within aten::linear.
/// - In backward, the operators of an autograd node are reported within that node.
/// - Under an OpTap, an operator is still reported only once.
/// - Operators that an observer calls are not reported to any observer.
/// - An observer cannot make an operator fail. Use OpCheck for this.
///
/// If before() or after() throws, this observer receives no more calls. ObserverGuard::check() rethrows the exception.
/// If check() is not called, the exception is logged.
/// Threads: called on each thread where the observer is installed or to which its context was carried (autograd's
///          workers, tap::ContextGuard). Calls may be concurrent
class Observer {
 public:
  virtual ~Observer() = default;
  /// Called once, when the guard is created.
  virtual ObserverNeeds needs() const { return {}; }
  virtual void before(const OpEvent&) {}
  /// Also called if the operator threw an exception.
  virtual void after(const OpEvent&) {}
};

/// Installs an observer on this thread while the guard exists. If observers are nested, before() runs in the order of
/// installation and after() in reverse order. When the guard has ended, no thread calls the observer for new operators.
/// Threads: create and destroy guards on the same thread and in nested order. Otherwise, the destructor still removes
///          the observer, but logs an error
/// Cost:    a small fraction of the dispatch time of an operator; measured by bench/taps
class ObserverGuard {
 public:
  /// Throws: c10::ValueError if `observer` is null
  explicit ObserverGuard(std::shared_ptr<Observer> observer);
  ~ObserverGuard();
  ObserverGuard(const ObserverGuard&) = delete;
  ObserverGuard& operator=(const ObserverGuard&) = delete;

  /// Rethrows the first exception of the observer, but only once.
  void check();

 private:
  std::shared_ptr<void> node_;
};

}  // namespace bellows::tap
