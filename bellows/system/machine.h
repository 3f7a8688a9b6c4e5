#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows {

/// The machine and the libtorch that this process runs on, as every report of a measurement names them.
struct Machine {
  std::string cpu;               ///< "Intel(R) Xeon(R) Processor"
  std::string cpu_family_model;  ///< "6/207"; empty where there is no such thing
  int64_t cores = 0;             ///< physical cores of the machine
  int64_t hardware_threads = 0;  ///< hardware threads that this process may run on
  double cpu_quota = 0;          ///< processors' worth of time that the container may use; 0: no limit
  /// Instruction sets that matter here and are present: "avx2", "avx512_bf16", "amx_bf16", …
  std::vector<std::string> isa;
  int64_t memory_bytes = 0;  ///< installed, or the container's limit if that is smaller
  int64_t memory_available_bytes = 0;
  std::string os;             ///< "Debian GNU/Linux 12 (bookworm), Linux 6.1.0, x86_64"
  std::string libtorch;       ///< version: "2.11.0"
  std::string libtorch_path;  ///< the file that was loaded
  int64_t torch_threads = 0;  ///< threads that an operator uses

  bool has(const std::string& instruction_set) const;
  /// Hardware threads, cut down to the container's quota: the most that can run at a time.
  int64_t usable_threads() const;
};

/// Reads /proc, /etc/os-release and the cgroup files; what cannot be found out stays empty or 0.
Machine this_machine();

}  // namespace bellows
