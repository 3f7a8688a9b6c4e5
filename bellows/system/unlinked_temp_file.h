#pragma once

#include <cstdint>
#include <string>

namespace bellows {

/// A file without a name, for what does not fit into memory. The system takes it away when the last user of its
/// descriptor or of its memory ends, by whatever, kill -9 too.
/// Threads: one at a time where grow() is called
class NamelessFile {
 public:
  /// Params: folder – empty: $TMPDIR, or /tmp. Some systems keep /tmp in memory
  ///         user – begins the messages of errors: "offload"
  /// Throws: c10::Error – the folder is missing or cannot be written
  NamelessFile(std::string folder, std::string user);
  ~NamelessFile();
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  /// Takes room on the disk up to byte `end`: what is written there later does not find it full. On file systems that cannot
  /// promise room it only looks whether there is some.
  /// Params: advice – ends the message: what else may be done
  /// Throws: c10::Error – not enough room, or beyond `ulimit -f`: figures of both; nothing has changed then
  void grow(int64_t end, const std::string& advice);
  /// Writes zeros from byte `begin` on where the file system has promised no room, so that there is some.
  /// Cost:   as writing; nothing where it has promised
  /// Throws: as grow()
  void fill(int64_t begin, const std::string& advice);
  /// Whether grow() would find room for so many bytes in half of what is available.
  bool has_plenty(int64_t end) const;

  int64_t size() const { return size_; }
  int descriptor() const { return fd_; }
  const std::string& folder() const { return folder_; }

 private:
  /// Params: error – the system's number, 0 for none
  void check_room(int error, int64_t more, const std::string& advice) const;

  const std::string folder_, user_;
  int fd_ = -1;
  int64_t size_ = 0;
  bool promised_ = true;  ///< by the file system: the room is ours
};

}  // namespace bellows
