#pragma once

#include <optional>
#include <stop_token>
#include <string>

namespace bellows::compile_detail {

/// The system's C++ compiler, that generated kernels are compiled with.
struct KernelCompiler {
  std::string path;      ///< of the program
  std::string identity;  ///< its version, the flags it is called with, and the processor that it generates code for
  int timeout_s = 300;   ///< of one source: one that takes longer is ended

  /// $BELLOWS_CXX, or the first of g++, c++ and clang++ in PATH that says its version; nothing: there is none.
  /// Params: timeout_s – for saying so
  /// Throws: c10::Error – BELLOWS_CXX is set and says none; there is no folder for temporary files
  static std::optional<KernelCompiler> find(int timeout_s = 20);

  /// Compiles one source into a shared library, in child processes and a private temporary folder, which end with this process, also if it is killed.
  /// Params: stop – ends the children
  /// Threads: any; each call has children of its own
  /// Throws: c10::Error – it cannot be compiled, with the first lines of what the compiler says, took too long, or was stopped
  std::string compile(const std::string& source, const std::stop_token& stop = {}) const;
};

}  // namespace bellows::compile_detail
