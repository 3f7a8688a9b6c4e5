#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows {

/// The machine and the libtorch that this process uses. Measurement reports include these values.
struct Machine {
  std::string cpu;               ///< model name, such as "Intel(R) Xeon(R) Processor"
  std::string cpu_family_model;  ///< such as "6/207"; empty if the CPU does not report it
  int64_t cores = 0;             ///< physical cores of the machine
  int64_t hardware_threads = 0;  ///< hardware threads that this process may run on
  double cpu_quota = 0;          ///< CPU time that the container may use, in CPUs; 0: no limit
  /// Relevant instruction sets that the CPU supports: "avx2", "avx512_bf16", "amx_bf16", …
  std::vector<std::string> isa;
  int64_t memory_bytes = 0;  ///< installed memory, or the container's limit if that is smaller
  int64_t memory_available_bytes = 0;
  std::string os;             ///< such as "Debian GNU/Linux 12 (bookworm), Linux 6.1.0, x86_64"
  std::string libtorch;       ///< version, such as "2.11.0"
  std::string libtorch_path;  ///< path of the loaded library
  int64_t torch_threads = 0;  ///< intra-op threads of libtorch

  bool has(const std::string& instruction_set) const;
  /// Returns whether the CPU has bf16 matrix multiplication (AMX-BF16, AVX512-BF16 or Arm's BF16). Other CPUs emulate
  /// it, so that bf16 is slower than fp32.
  bool has_bf16_arithmetic() const;
  /// Returns whether matrix multiplications are faster in bf16 than in fp32: with AMX-BF16, Arm's BF16, or AVX512-BF16
  /// of AMD. Intel's AVX512-BF16 computes at most as many products per cycle as fp32.
  bool has_fast_bf16() const;
  /// The number of threads that can run at the same time: the hardware threads, limited by the container's CPU quota.
  int64_t usable_threads() const;
};

/// Reads /proc, /etc/os-release and the cgroup files. Values that are not available are empty or 0.
Machine this_machine();

}  // namespace bellows
