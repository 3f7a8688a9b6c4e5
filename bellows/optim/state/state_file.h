#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "bellows/system/unlinked_temp_file.h"

namespace bellows::optim {

struct FilePart {
  int64_t offset = 0, bytes = 0;
};

/// An unlinked temporary file of fixed size that is mapped into memory and holds tensors. The system reads its pages on
/// access, and writes them when it chooses or when write_out() is called. Pages that were never written read as zeros.
/// Parts that are fetched or written out must consist of whole pages.
/// Threads: thread-safe
class StateFile : public std::enable_shared_from_this<StateFile> {
 public:
  /// Throws: c10::Error if the folder does not exist or has too little space for `bytes`
  static std::shared_ptr<StateFile> make(const std::string& folder, int64_t bytes);
  static int64_t page_bytes();
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Copies a dense CPU tensor, with its strides, to `offset`. The result keeps the file alive.
  at::Tensor put(const at::Tensor& tensor, int64_t offset);
  bool holds(const at::Tensor& tensor) const;
  /// Starts reading the pages without waiting.
  void fetch(FilePart part) const;
  /// Writes the pages and removes them from memory. Waits until this is complete.
  /// Throws: c10::Error if the disk fails
  void write_out(FilePart part) const;
  /// Number of bytes that are in memory.
  int64_t resident_bytes(FilePart part) const;
  int64_t size() const { return file_.size(); }

 private:
  StateFile(const std::string& folder, int64_t bytes);

  UnlinkedTempFile file_;
  char* memory_ = nullptr;
};

/// Calls StateFile::write_out() on its own thread.
/// Threads: only one thread may call it
class StateWriter {
 public:
  /// Params: most_bytes – limit of bytes that wait to be written
  StateWriter(std::shared_ptr<const StateFile> file, int64_t most_bytes);
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  /// Queues a part. Waits while too many bytes are queued.
  /// Throws: c10::Error if an earlier part could not be written
  void give(FilePart part);
  /// Waits until all queued parts are written.
  /// Throws: as give()
  void wait();

 private:
  void run();
  void rethrow_error();

  const std::shared_ptr<const StateFile> file_;
  const int64_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable work_, progress_;
  std::deque<FilePart> queue_;
  int64_t waiting_bytes_ = 0;
  std::exception_ptr error_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace bellows::optim
