#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace bellows::recompute::detail {

/// How a second run treats an operator call.
enum class CallKind : uint8_t {
  /// The results share memory with the arguments, and the operator does not read their values. Views are always called
  /// and never recorded.
  view,
  makes,   ///< creates new tensors and writes no argument
  writes,  ///< writes its first argument in place and returns this argument
  other,   ///< all other operators, which are always called
};

struct OperatorKind {
  CallKind kind = CallKind::other;
  bool random = false;         ///< draws random numbers from a default generator
  bool uninitialized = false;  ///< does not initialize its results, which other operators fill
  /// Fills its results without reading values. Later, the host may write to these results, and this is not detected.
  bool constant = false;
  bool foreign = false;      ///< may have effects that its schema does not declare, as collectives do
  bool writes_some = false;  ///< writes at least one of its arguments
};

/// Derives the kind from the operator's schema and tags.
/// Threads: thread-safe
OperatorKind operator_kind(const c10::OperatorHandle& handle);

using StorageIds = c10::SmallVector<int32_t, 4>;  ///< numbers that a RegionTrace assigns to storages

/// One operator call in the first run of a region.
struct TracedCall {
  const c10::FunctionSchema* schema = nullptr;
  OperatorKind kind;
  bool kept = false;    ///< whether a policy already decided to keep its outputs
  bool barred = false;  ///< whether its outputs cannot be kept
  double seconds = 0;
  StorageIds reads;
  StorageIds makes;     ///< one storage per output; -1: undefined output
  int32_t target = -1;  ///< the storage that a call of kind `writes` writes; otherwise -1
};

/// Treatment of a call in the second run: `run` executes it, `give` provides its kept outputs, and `skip` omits it.
enum class Action : uint8_t { run, give, skip };

struct Step {
  const c10::FunctionSchema* schema = nullptr;
  Action action = Action::run;
  uint32_t given = 0;  ///< bit i is set if output i is provided; the values of all other outputs are not read
  /// Number of skipped in-place writes to the first output, which is provided in its final state.
  uint32_t writes = 0;
};

/// A record of one call of a checkpointed function (a region): its operators, the storages that they read and wrote,
/// and the storages that autograd saved. This information determines which operators a second run can omit. Tensors are
/// identified by their storages.
class RegionTrace {
 public:
  RegionTrace() = default;

  /// Returns the storages of the arguments. Call it before the operator runs.
  StorageIds read(std::span<const c10::IValue> arguments);
  /// Adds a call.
  /// Params:  call – the call, with the storages that it reads
  ///          outputs – the outputs of an operator of kind `makes`; empty for all other kinds
  /// Returns: the recorded call; valid until the next call is added
  TracedCall& add(TracedCall call, const std::vector<at::Tensor>& outputs);
  bool keeps(size_t call) const { return calls_[call].kept; }
  /// Returns whether an output of the call may have been written without an increase of the output's version counter.
  bool written_unseen(size_t call) const;
  /// Excludes a call whose outputs have changed since the call.
  void cannot_keep(size_t call) { calls_[call].kept = false, calls_[call].barred = true; }
  void saved(const at::Tensor& tensor);
  /// Call this function when the first run has ended.
  void finish();

  /// Returns the number of the storage if the region created it, and -1 otherwise. Valid until forget() is called.
  int32_t made(const c10::StorageImpl* storage) const;
  /// Marks a storage that another part of the step keeps until backward anyway. The budget does not count such a
  /// storage.
  void lives_anyway(int32_t storage) { storages_[static_cast<size_t>(storage)].bytes = 0; }
  void forget() { numbers_.clear(); }

  size_t calls() const { return calls_.size(); }
  size_t storages() const { return storages_.size(); }
  int64_t bytes(size_t storage) const { return storages_[storage].bytes; }
  /// Returns the number of in-place writes to the first output of the call.
  uint32_t writes_to(size_t call) const;
  /// Returns whether the storage can be kept, either as it was created or in its final state after in-place writes. The
  /// final state can be kept only if nothing reads the storage before these writes.
  bool keepable(size_t storage) const;
  /// Returns the keepable storages that autograd saved. If calls cannot be skipped, returns all keepable storages.
  std::vector<char> wanted() const;
  double seconds() const;
  /// Turns off skipping of calls for a region that may access memory without calling operators.
  void never_skip() { may_skip_ = false; }

  /// Returns whether both traces have the same calls on the same storages.
  bool same_calls(const RegionTrace& other) const;
  /// Replaces the time of each call with the shorter time of the two traces.
  void take_shorter_times(const RegionTrace& other);

  /// Returns the actions of the second run if the storages marked in `kept` are kept.
  std::vector<Step> steps(const std::vector<char>& kept) const;
  /// Returns the time of the calls that the second run executes if the storages marked in `kept` are kept.
  double seconds_again(const std::vector<char>& kept) const;

 private:
  struct StorageFacts {
    int64_t bytes = 0;
    int32_t maker = -1;   ///< the call that created it, or -1
    uint32_t writes = 0;  ///< number of in-place writes
    bool saved = false, looked_at = false;
    bool changed = false;  ///< written after a read, or by an operator with undeclared effects
    bool unseen = false;   ///< the change may not have increased its version counter
  };
  struct Saved {
    int32_t storage;
    size_t behind;  ///< number of calls before autograd saved the storage
  };
  struct Number {
    int32_t id;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< prevents reuse of the address, but does not keep the memory
  };
  class Scan;
  int32_t number(const at::Tensor& tensor);

  std::vector<TracedCall> calls_;
  std::vector<StorageFacts> storages_;
  std::vector<Saved> saved_;
  std::unordered_map<const c10::StorageImpl*, Number> numbers_;
  bool may_skip_ = true;
};

}  // namespace bellows::recompute::detail
