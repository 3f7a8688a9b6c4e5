#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "bellows/core/mutex.h"
#include "bellows/system/unlinked_temp_file.h"

namespace bellows::optim {

struct FilePart {
  int64_t offset = 0, bytes = 0;
};

/// An unlinked temporary file of fixed size that is mapped into memory and holds tensors. The system reads its pages on
/// access. It writes changed pages to the disk at any time, or when write_out() is called. Pages that were never
/// written read as zeros. Parts that are passed to fetch() or write_out() must consist of complete pages.
/// Threads: thread-safe
class StateFile : public std::enable_shared_from_this<StateFile> {
 public:
  /// The user of a file, for error messages.
  struct User {
    std::string name;    ///< prefix of messages
    std::string advice;  ///< how to need less space
  };
  static User optimizer_state();

  /// Throws: c10::Error if the folder does not exist or has too little space for `bytes`
  static std::shared_ptr<StateFile> make(const std::string& folder, int64_t bytes, User user = optimizer_state());
  static int64_t page_bytes();
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Returns a tensor whose memory starts at `offset`. It keeps the file open.
  at::Tensor tensor(int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options);
  /// Copies a dense CPU tensor to `offset`, with its strides. The result keeps the file open.
  at::Tensor put(const at::Tensor& tensor, int64_t offset);
  bool holds(const at::Tensor& tensor) const;
  /// Starts to read the pages, and does not wait for them.
  void fetch(FilePart part) const;
  /// Writes the pages to the disk and removes them from memory. Returns when this is complete.
  /// Throws: c10::Error if the disk fails
  void write_out(FilePart part) const;
  /// Returns the number of bytes of the part that are in memory.
  int64_t resident_bytes(FilePart part) const;
  int64_t size() const { return file_.size(); }
  const std::string& user() const { return user_.name; }

 private:
  StateFile(const std::string& folder, int64_t bytes, User user);

  const User user_;
  UnlinkedTempFile file_;
  char* memory_ = nullptr;
};

/// Calls StateFile::write_out() on a background thread.
/// Threads: use it on one thread only
class StateWriter {
 public:
  /// Params: most_bytes – limit for the bytes that wait to be written
  /// Throws: c10::Error if the system cannot start a thread. The message starts with the user of the file
  StateWriter(std::shared_ptr<const StateFile> file, int64_t most_bytes);
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  /// Queues a part. Waits while too many bytes are queued.
  /// Throws: c10::Error if an earlier part could not be written
  void give(FilePart part);
  /// Waits until all queued parts are written.
  /// Throws: like give()
  void wait();

 private:
  void run();
  void rethrow_error() BELLOWS_REQUIRES(mutex_);

  const std::shared_ptr<const StateFile> file_;
  const int64_t most_bytes_;
  Mutex mutex_;
  ConditionVariable work_, progress_;
  std::deque<FilePart> queue_ BELLOWS_GUARDED_BY(mutex_);
  int64_t waiting_bytes_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ BELLOWS_GUARDED_BY(mutex_);
  bool ending_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace bellows::optim
