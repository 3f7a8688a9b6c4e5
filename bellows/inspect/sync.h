#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bellows::inspect {

/// The reaction to an implicit synchronization.
enum class SyncAction {
  count,  ///< count it
  warn,   ///< also log it, once per call site
  error,  ///< also throw c10::Error from the operator call, before the operator runs
};

/// All synchronizations of one operator at one call site.
struct SyncEvent {
  std::string op;  ///< the operator that was called, such as "aten::item"
  /// For example "reads a value on the host", "copies from cuda:0 to the host" or "its shape depends on data".
  std::string reason;
  std::string site;  ///< call_site(); empty if unknown
  int64_t count = 0;
};

/// Finds places where the host implicitly waits for the device:
/// - reading a value (`item()`, `equal`, `allclose`)
/// - a blocking copy from the device to the host
/// - an operator whose result has a data-dependent shape (`nonzero`, `masked_select`, `unique`, indexing with a mask)
///
/// On a CPU, these calls do not wait, but they would wait on an accelerator. They are therefore counted on a CPU, too,
/// unless the option `cpu` is false.
/// Threads: observes the thread that creates the object, and autograd's workers for that thread. Create and destroy the
///          object on the same thread
class SyncDetector {
 public:
  struct Options {
    SyncAction action = SyncAction::warn;
    bool cpu = true;         ///< also count operators on CPU tensors
    bool call_sites = true;  ///< find the call site, which takes about 20 µs per event
  };
  explicit SyncDetector(const Options& options);
  SyncDetector() : SyncDetector(Options{}) {}
  ~SyncDetector();
  SyncDetector(const SyncDetector&) = delete;
  SyncDetector& operator=(const SyncDetector&) = delete;

  /// Returns the events, most frequent first.
  std::vector<SyncEvent> events() const;
  int64_t count() const;
  void reset();
  /// Returns a table with one line per event.
  std::string to_text() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace bellows::inspect
