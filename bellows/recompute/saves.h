#pragma once

namespace bellows::recompute::detail {

/// The reason for which a checkpointed call saves a tensor.
enum class SaveKind { none, input, kept_output };

/// While this object exists, the saved tensors of this thread belong to a checkpointed call. Guards that handle only
/// such tensors call now().
class SaveScope {
 public:
  explicit SaveScope(SaveKind kind) : before_(current()) { current() = kind; }
  ~SaveScope() { current() = before_; }
  SaveScope(const SaveScope&) = delete;
  SaveScope& operator=(const SaveScope&) = delete;
  static SaveKind now() { return current(); }

 private:
  static SaveKind& current() {
    static thread_local SaveKind kind = SaveKind::none;
    return kind;
  }
  const SaveKind before_;
};

/// Counts objects of one kind that exist on this thread.
template <class Kind>
class CountedOnThread {
 public:
  CountedOnThread() { ++count(); }
  ~CountedOnThread() { --count(); }
  CountedOnThread(const CountedOnThread&) = delete;
  CountedOnThread& operator=(const CountedOnThread&) = delete;
  static bool any() { return count() > 0; }

 private:
  static int& count() {
    static thread_local int count = 0;
    return count;
  }
};

/// Exists while the first or second run of a checkpointed call is active on this thread.
struct ActiveRun : CountedOnThread<ActiveRun> {};

/// Exists while a guard of this thread stores the outputs that checkpointed calls keep.
struct StoresKeptOutputs : CountedOnThread<StoresKeptOutputs> {};

}  // namespace bellows::recompute::detail
