#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/serve/loaded_model.h"

namespace bellows::serve {

/// A folder that is deleted with the object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string path() const { return path_.string(); }
  /// Writes a file, and creates its folder.
  void write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

/// A gate at which models wait. It is open at first.
class Gate {
 public:
  void close();
  void open();
  void wait();
  /// Waits until a number of calls have arrived since close().
  void wait_for_arrivals(int count);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int arrivals_ = 0;
};

/// The gate of all models of the kind "gated".
Gate& gate();

/// Closes the gate, and opens it at the end even if a test fails.
struct ClosedGate {
  ClosedGate() { gate().close(); }
  ~ClosedGate() { gate().open(); }
};

/// Loads models from text files. The file's first word is the kind:
///   identity   x [rows, 4] fp32 → y, the same values
///   scale N    x [rows, 4] fp32 → y = N * x
///   sum        a, b [rows, 2] int64 → total = a + b
///   gated      like identity, but waits at the gate
///   strict     like identity, but throws if a value of the batch is negative
///   types DTYPE  x of this dtype and any sizes → y, the same values
///   tokens     input_ids [rows, length] int64 → y [rows, 2] = the sum of the tokens, and how many are not 0
///   masked     like tokens, with an attention_mask that selects the tokens
///   rows       x [rows, length] fp32 → y = 2 * x, total [rows, 1] = the sum of each row
///   accumulate x [rows, 1] fp32 and the state sum → y [rows, 5] = sum + x, START, READY, END, CORRID; fails if x is -1
///   shrink     x [rows, 4] fp32 → y without the last row
ModelLoader test_loader();

/// Writes models for test_loader(): "identity", "sum" with batches of up to 8 rows, and "gated" with batches of up to 4
/// rows and a queue of 2 requests.
void write_test_models(const TestFolder& folder);

/// Returns the number of rows of each call of a model of test_loader() since the last clear.
std::vector<int64_t> take_batch_sizes();

}  // namespace bellows::serve
