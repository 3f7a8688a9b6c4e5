#pragma once

namespace bellows {

/// Returns whether this thread records a function for export, such as export_onnx(). An exported graph cannot read
/// values on the host. A model that checks values, or that has a faster path for some values, tests this function: it
/// then omits the checks and takes the path that is correct for all values.
/// ```
/// if (!bellows::is_exporting() && ids.max().item<int64_t>() >= vocabulary) throw …;
/// ```
/// Ref: torch.compiler.is_exporting
bool is_exporting();

/// While the guard exists, is_exporting() returns true on this thread.
/// Threads: create and destroy the guard on the same thread
class ExportingGuard {
 public:
  ExportingGuard();
  ~ExportingGuard();
  ExportingGuard(const ExportingGuard&) = delete;
  ExportingGuard& operator=(const ExportingGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace bellows
