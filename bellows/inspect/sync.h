#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bellows::inspect {

/// Action at an implicit synchronization.
enum class SyncAction {
  count,  ///< count it
  warn,   ///< also log it, once per place
  error,  ///< also throw c10::Error from the operator's call, before it runs
};

/// All synchronizations by one operator at one place.
struct SyncEvent {
  std::string op;      ///< the called operator: "aten::item"
  std::string reason;  ///< "reads a value on the host", "copies from cuda:0 to the host", "its shape depends on data"
  std::string site;    ///< call_site(), or "" if unknown
  int64_t count = 0;
};

/// Finds places where the host implicitly waits for the device:
/// - reading a value (`item()`, `equal`, `allclose`)
/// - a blocking copy from the device to the host
/// - an operator whose result's shape depends on data (`nonzero`, `masked_select`, `unique`, indexing with a mask)
///
/// On a CPU nothing waits, but the same calls would wait on an accelerator. They are counted as well unless `cpu` is
/// false.
/// Threads: observes the thread that creates it, and autograd's workers for that thread; create and destroy it on the
///          same thread
class SyncDetector {
 public:
  struct Options {
    SyncAction action = SyncAction::warn;
    bool cpu = true;         ///< also count operators on CPU tensors
    bool call_sites = true;  ///< find the call site: about 20 µs per event
  };
  explicit SyncDetector(const Options& options);
  SyncDetector() : SyncDetector(Options{}) {}
  ~SyncDetector();
  SyncDetector(const SyncDetector&) = delete;
  SyncDetector& operator=(const SyncDetector&) = delete;

  /// Events, the most frequent first.
  std::vector<SyncEvent> events() const;
  int64_t count() const;
  void reset();
  /// A table with one line per event.
  std::string to_text() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace bellows::inspect
