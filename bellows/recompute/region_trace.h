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

/// What a call of an operator can be to a second run.
enum class CallKind : uint8_t {
  view,    ///< its results lie in the memory of its arguments, of which it reads nothing: always called, never noted
  makes,   ///< new tensors, and writes nothing
  writes,  ///< its first argument in place, which is its result
  other,   ///< all else: always called
};

struct OperatorKind {
  CallKind kind = CallKind::other;
  bool random = false;         ///< draws from a default generator
  bool uninitialized = false;  ///< leaves what it makes for others to fill
  bool constant = false;       ///< fills what it makes without a look at a value: the host may write to it, unnoticed
  bool foreign = false;        ///< nobody knows what else it does: a schema need not tell, that of collectives does not
  bool writes_some = false;    ///< of its arguments
};

/// By the schema and tags.
/// Threads: safe
OperatorKind operator_kind(const c10::OperatorHandle& handle);

using StorageIds = c10::SmallVector<int32_t, 4>;  ///< of a RegionTrace

/// One call of a region's first run.
struct TracedCall {
  const c10::FunctionSchema* schema = nullptr;
  OperatorKind kind;
  bool kept = false;    ///< its outputs are, whatever is chosen
  bool barred = false;  ///< from being chosen
  double seconds = 0;
  StorageIds reads;
  StorageIds makes;     ///< by the number of the output; -1: undefined
  int32_t target = -1;  ///< what it writes, of kind `writes`
};

/// What a second run does with a call.
enum class Action : uint8_t { run, give, skip };

struct Step {
  const c10::FunctionSchema* schema = nullptr;
  Action action = Action::run;
  uint32_t given = 0;   ///< which outputs, a bit for each; of the others nobody reads a value
  uint32_t writes = 0;  ///< in place to the first output afterwards: it is given as they left it, and they are skipped
};

/// Which operators a region called, what they read and wrote, and what of it autograd saved: enough to say which of them
/// a second run need not call. Tensors are told apart by their storages.
class RegionTrace {
 public:
  RegionTrace() = default;

  /// Of the arguments, before the call.
  StorageIds read(std::span<const c10::IValue> arguments);
  /// Params: call – with what it read; outputs – of an operator of kind `makes`, otherwise none
  /// Returns: the call as it was noted, until the next one
  TracedCall& add(TracedCall call, const std::vector<at::Tensor>& outputs);
  bool keeps(size_t call) const { return calls_[call].kept; }
  /// One of its outputs may have been written without its version telling.
  bool written_unseen(size_t call) const;
  /// Its outputs are not what they were.
  void cannot_keep(size_t call) { calls_[call].kept = false, calls_[call].barred = true; }
  void saved(const at::Tensor& tensor);
  /// The first run is over.
  void finish();

  /// The storage's number if the region made it, or -1. Until forget().
  int32_t made(const c10::StorageImpl* storage) const;
  /// Another part of the step keeps this storage until backward anyway: keeping it costs nothing.
  void lives_anyway(int32_t storage) { storages_[static_cast<size_t>(storage)].bytes = 0; }
  void forget() { numbers_.clear(); }

  size_t calls() const { return calls_.size(); }
  size_t storages() const { return storages_.size(); }
  int64_t bytes(size_t storage) const { return storages_[storage].bytes; }
  /// How often the first output of a call is written in place.
  uint32_t writes_to(size_t call) const;
  /// A storage that may be kept: as it was made, or as the last of those left it that wrote it, if nobody looked at it before.
  bool keepable(size_t storage) const;
  /// Of these the ones that autograd saved; all of them if calls cannot be left out.
  std::vector<char> wanted() const;
  double seconds() const;
  /// Calls can be left out: nothing is known to read or write memory past the operators.
  bool may_skip() const { return may_skip_; }
  void never_skip() { may_skip_ = false; }

  /// The same calls of the same storages.
  bool same_calls(const RegionTrace& other) const;
  /// Of each call the shorter time.
  void take_shorter_times(const RegionTrace& other);

  /// What the second run does if these storages are kept.
  std::vector<Step> steps(const std::vector<char>& kept) const;
  /// The time of what it calls.
  double seconds_again(const std::vector<char>& kept) const;

 private:
  struct StorageFacts {
    int64_t bytes = 0;
    int32_t maker = -1;   ///< the call, or none of them
    uint32_t writes = 0;  ///< in place
    bool saved = false, looked_at = false;
    bool changed = false;  ///< after somebody had looked at it, or nobody knows how
    bool unseen = false;   ///< its version need not tell of that
  };
  struct Saved {
    int32_t storage;
    size_t behind;  ///< so many calls
  };
  struct Number {
    int32_t id;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< keeps the address from being used again, not the memory
  };
  class Scan;
  int32_t number(const at::Tensor& tensor);

  std::vector<TracedCall> calls_;
  std::vector<StorageFacts> storages_;
  std::vector<Saved> saved_;
  std::unordered_map<const c10::StorageImpl*, Number> numbers_;
  bool may_skip_ = true;
};

/// Which storages of each region to keep within `room` bytes in all, so that the second runs take the least time. Begins
/// with all that autograd saved, gives up what costs least time for a byte, and fills what room is left.
std::vector<std::vector<char>> choose(const std::vector<const RegionTrace*>& regions, int64_t room);

}  // namespace bellows::recompute::detail
