#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bellows::inspect {

/// What to do at an implicit synchronization.
enum class SyncAction {
  count,  ///< remember it
  warn,   ///< and log it, once a place
  error,  ///< and throw c10::Error from the operator's call, before it runs
};

/// All synchronizations of one operator at one place.
struct SyncEvent {
  std::string op;      ///< "aten::item": the operator that was called
  std::string reason;  ///< "reads a value on the host", "copies from cuda:0 to the host", "its shape depends on data"
  std::string site;    ///< call_site(), or "" where none is known
  int64_t count = 0;
};

/// Finds where the host waits for the device without being asked to: reading a value (`item()`, `equal`, `allclose`),
/// a blocking copy from the device to the host, an operator whose result's shape depends on data (`nonzero`,
/// `masked_select`, `unique`, indexing with a mask).
///
/// On a CPU nothing waits, but the same calls would on an accelerator: they are counted alike unless `cpu` is false.
/// Threads: sees the thread that makes it and autograd's workers for it; make and destroy it on one thread
class SyncDetector {
 public:
  struct Options {
    SyncAction action = SyncAction::warn;
    bool cpu = true;         ///< count operators on CPU tensors, too
    bool call_sites = true;  ///< find the place: about 20 µs an event
  };
  explicit SyncDetector(const Options& options);
  SyncDetector() : SyncDetector(Options{}) {}
  ~SyncDetector();
  SyncDetector(const SyncDetector&) = delete;
  SyncDetector& operator=(const SyncDetector&) = delete;

  /// The most frequent first.
  std::vector<SyncEvent> events() const;
  int64_t count() const;
  void reset();
  /// A table, a line an event.
  std::string to_text() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace bellows::inspect
