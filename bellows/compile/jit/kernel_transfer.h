#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/compile/jit/kernel_cache.h"

namespace bellows::compile_detail {

/// The result of an export or an import.
struct KernelTransfer {
  int64_t kernels = 0;  ///< written to the bundle or to the cache
  int64_t skipped = 0;  ///< export: for another compiler or processor, or refused. Import: already in the cache
  int64_t bytes = 0;    ///< size of the bundle
};

/// Writes all valid kernels that were compiled on this machine with the current compiler to a signed bundle. An existing
/// file is replaced atomically.
/// Throws: c10::Error if there is no compiler, if the cache has no such kernels or cannot be used, or if the file cannot
///         be written
KernelTransfer export_kernels(const KernelCache& cache, const std::string& path, const io::SigningKey& key);

/// Adds the kernels of a signed bundle to the cache. Nothing is written unless the signature, the machine and all
/// checksums are right. Each kernel is then written atomically. Entries of the cache that are valid stay unchanged.
/// Throws: c10::ValueError if open_kernel_bundle() throws it, if the kernels were compiled for another machine, or if
///         they exceed the limit of the cache. c10::Error if there is no compiler, or if the cache cannot be written
KernelTransfer import_kernels(KernelCache& cache, const std::string& path, const std::vector<io::PublicKey>& trusted);

}  // namespace bellows::compile_detail
