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

/// The role of an operator call in a second run.
enum class CallKind : uint8_t {
  /// Its results share the memory of its arguments, whose values it does not read: always called, never recorded
  view,
  makes,   ///< creates new tensors and writes no argument
  writes,  ///< writes its first argument in place and returns it
  other,   ///< all other operators: always called
};

struct OperatorKind {
  CallKind kind = CallKind::other;
  bool random = false;         ///< draws from a default generator
  bool uninitialized = false;  ///< leaves its results uninitialized, for others to fill
  bool constant = false;       ///< fills its results without reading values; the host may then write to them undetected
  bool foreign = false;        ///< may have effects that its schema does not declare, such as collectives
  bool writes_some = false;    ///< writes at least one of its arguments
};

/// Derives the kind from the operator's schema and tags.
/// Threads: safe
OperatorKind operator_kind(const c10::OperatorHandle& handle);

using StorageIds = c10::SmallVector<int32_t, 4>;  ///< numbers of storages in a RegionTrace

/// One operator call in a region's first run.
struct TracedCall {
  const c10::FunctionSchema* schema = nullptr;
  OperatorKind kind;
  bool kept = false;    ///< its outputs are kept independently of the choice
  bool barred = false;  ///< its outputs must not be chosen
  double seconds = 0;
  StorageIds reads;
  StorageIds makes;     ///< by output number; -1: undefined output
  int32_t target = -1;  ///< the storage that it writes, for kind `writes`
};

/// The action of a second run for a call: execute it, use its kept outputs, or skip it.
enum class Action : uint8_t { run, give, skip };

struct Step {
  const c10::FunctionSchema* schema = nullptr;
  Action action = Action::run;
  uint32_t given = 0;  ///< one bit for each output that is provided; the values of the others are not read
  /// Number of in-place writes to the first output that are skipped, because it is provided in its final state
  uint32_t writes = 0;
};

/// The operators that a region called, the storages that they read and wrote, and the storages that autograd saved.
/// This is enough to determine which operators a second run can omit. Tensors are identified by their storages.
class RegionTrace {
 public:
  RegionTrace() = default;

  /// Returns: the storages of the arguments. Call it before the operator runs.
  StorageIds read(std::span<const c10::IValue> arguments);
  /// Adds a call.
  /// Params:  call – with the storages that it read
  ///          outputs – the outputs of an operator of kind `makes`, otherwise empty
  /// Returns: the recorded call; valid until the next call is added
  TracedCall& add(TracedCall call, const std::vector<at::Tensor>& outputs);
  bool keeps(size_t call) const { return calls_[call].kept; }
  /// True if one of its outputs may have been written without a change of its version.
  bool written_unseen(size_t call) const;
  /// Excludes a call whose outputs have changed since.
  void cannot_keep(size_t call) { calls_[call].kept = false, calls_[call].barred = true; }
  void saved(const at::Tensor& tensor);
  /// Call it when the first run has ended.
  void finish();

  /// Returns: the storage's number if the region created it, otherwise -1. Valid until forget().
  int32_t made(const c10::StorageImpl* storage) const;
  /// Marks a storage that another part of the step keeps until backward anyway. Keeping it costs nothing.
  void lives_anyway(int32_t storage) { storages_[static_cast<size_t>(storage)].bytes = 0; }
  void forget() { numbers_.clear(); }

  size_t calls() const { return calls_.size(); }
  size_t storages() const { return storages_.size(); }
  int64_t bytes(size_t storage) const { return storages_[storage].bytes; }
  /// Returns: the number of in-place writes to the first output of a call
  uint32_t writes_to(size_t call) const;
  /// True if the storage can be kept, either as it was created or in its final state after in-place writes. The latter
  /// requires that it was not read before these writes.
  bool keepable(size_t storage) const;
  /// Returns: the keepable storages that autograd saved, or all keepable storages if calls cannot be skipped
  std::vector<char> wanted() const;
  double seconds() const;
  /// Turns off skipping of calls, because something may access memory without calling operators.
  void never_skip() { may_skip_ = false; }

  /// True if both traces have the same calls on the same storages.
  bool same_calls(const RegionTrace& other) const;
  /// Takes the shorter time of each call.
  void take_shorter_times(const RegionTrace& other);

  /// Returns: the actions of the second run if these storages are kept
  std::vector<Step> steps(const std::vector<char>& kept) const;
  /// Returns: the time of the calls that the second run executes if these storages are kept
  double seconds_again(const std::vector<char>& kept) const;

 private:
  struct StorageFacts {
    int64_t bytes = 0;
    int32_t maker = -1;   ///< the call that created it, or -1
    uint32_t writes = 0;  ///< number of in-place writes
    bool saved = false, looked_at = false;
    bool changed = false;  ///< written after it was read, or by an operator with unknown effects
    bool unseen = false;   ///< its version may not show that change
  };
  struct Saved {
    int32_t storage;
    size_t behind;  ///< number of earlier calls
  };
  struct Number {
    int32_t id;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< reserves the address without keeping the memory
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
