#pragma once

#include <optional>
#include <stop_token>
#include <string>

namespace bellows::compile_detail {

/// The system's C++ compiler, which compiles generated kernels.
struct KernelCompiler {
  std::string path;      ///< of the compiler's executable
  std::string identity;  ///< its version, its flags, and the target processor
  int timeout_s = 300;   ///< seconds per source, after which compilation is aborted

  /// Returns: $BELLOWS_CXX, or the first of g++, c++ and clang++ in PATH that prints its version; nothing if there is
  ///          none
  /// Params:  timeout_s – seconds for printing the version
  /// Throws:  c10::Error if BELLOWS_CXX is set and does not print a version, or if there is no folder for temporary
  ///          files
  static std::optional<KernelCompiler> find(int timeout_s = 20);

  /// Compiles one source to a shared library. The child processes and the private temporary folder are removed when
  /// this process ends, even if it is killed.
  /// Params:  stop – aborts the child processes
  /// Threads: safe; each call has its own child processes
  /// Throws:  c10::Error if compilation fails (with the first lines of the compiler's output), takes too long, or is
  ///          stopped
  std::string compile(const std::string& source, const std::stop_token& stop = {}) const;
};

}  // namespace bellows::compile_detail
