#pragma once

#include <array>
#include <utility>

namespace bellows {

/// A pipe whose destructor closes both ends. Both ends are close-on-exec.
class Pipe {
 public:
  /// Params: who – prefix of the error message, such as "launch"
  /// Throws: c10::Error if the system cannot create a pipe
  explicit Pipe(const char* who);
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  /// Each function transfers ownership of one end to the caller, who must close it.
  int take_read_end() { return std::exchange(ends_[0], -1); }
  int take_write_end() { return std::exchange(ends_[1], -1); }

 private:
  std::array<int, 2> ends_ = {-1, -1};  ///< -1: transferred to the caller
};

}  // namespace bellows
