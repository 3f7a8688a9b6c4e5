#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>

namespace bellows::compile_detail {

/// A C++ compiler of this system, which compiles generated kernels.
struct KernelCompiler {
  std::string path;            ///< path of the compiler's executable
  std::string identity;        ///< version, flags and target processor
  int timeout_s = 300;         ///< seconds after which the compilation of a source is aborted
  std::string processor = "";  ///< the part of `identity` that describes the processor; the last part

  /// Finds a compiler: $BELLOWS_CXX, or the first of g++, c++ and clang++ in PATH that prints its version.
  /// Params:  timeout_s – seconds after which a compiler that has not printed its version is skipped
  /// Returns: nothing if there is no compiler
  /// Throws:  c10::Error if BELLOWS_CXX is set but does not print a version, or if there is no folder for temporary
  ///          files
  static std::optional<KernelCompiler> find(int timeout_s = 20);

  /// The processors on which a library runs.
  enum class Target : uint8_t { native, x86_64_v3 };

  /// Compiles a source and returns the content of the shared library. When this process ends, even if it is killed, its
  /// child processes are killed and its temporary folder is deleted.
  /// Params:  stop – request to end the child processes
  /// Threads: thread-safe; each call has separate child processes
  /// Throws:  c10::Error if compilation fails (the message has the first lines of the compiler's output), takes too
  ///          long, or is stopped
  std::string compile(const std::string& source, const std::stop_token& stop = {},
                      Target target = Target::native) const;
};

/// Returns a digest of the properties of this processor from which compilers derive -march=native.
std::string processor_digest();
/// Returns whether libraries for a target run on this processor, if they were not compiled here.
bool can_run_target(KernelCompiler::Target target);

}  // namespace bellows::compile_detail
