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

/// A part of a StateFile.
struct FilePart {
  int64_t offset = 0, bytes = 0;
};

/// A nameless file of fixed size, in which tensors lie as if it were memory: the system reads its pages when they are touched
/// and writes them when it likes, or as it is told here. What is touched first and had never been written is zero.
/// Parts that are fetched and written out are of whole pages.
/// Threads: safe
class StateFile : public std::enable_shared_from_this<StateFile> {
 public:
  /// Throws: c10::Error – the folder is missing, or has no room for `bytes`
  static std::shared_ptr<StateFile> make(const std::string& folder, int64_t bytes);
  static int64_t page_bytes();
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// A copy of a dense tensor of the CPU, with its strides, that lies at `offset` and keeps the file alive.
  at::Tensor put(const at::Tensor& tensor, int64_t offset);
  bool holds(const at::Tensor& tensor) const;
  /// Has the pages read, without a wait.
  void fetch(FilePart part) const;
  /// Has the pages written, and then taken out of memory: now, however long that takes.
  /// Throws: c10::Error – a failing disk
  void write_out(FilePart part) const;
  /// Bytes that are in memory.
  int64_t resident_bytes(FilePart part) const;
  int64_t size() const { return file_.size(); }

 private:
  StateFile(const std::string& folder, int64_t bytes);

  NamelessFile file_;
  char* memory_ = nullptr;
};

/// Calls StateFile::write_out() on a thread of its own.
/// Threads: one that gives
class StateWriter {
 public:
  /// Params: most_bytes – that may wait to be written
  StateWriter(std::shared_ptr<const StateFile> file, int64_t most_bytes);
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  /// Waits while too much does.
  /// Throws: c10::Error – an earlier part could not be written
  void give(FilePart part);
  /// Until all that was given is written. Throws as give()
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
