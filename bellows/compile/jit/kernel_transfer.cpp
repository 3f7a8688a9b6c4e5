#include "bellows/compile/jit/kernel_transfer.h"

#include <c10/util/Exception.h>

#include <deque>

#include "bellows/system/file.h"

namespace bellows::compile_detail {

KernelTransfer export_kernels(const KernelCache& cache, const std::string& path, const io::SigningKey& key) {
  KernelBundle bundle{.origin = cache.origin(), .kernels = {}};
  KernelTransfer result;
  std::deque<std::string> libraries;  // does not move its elements
  for (const KernelCache::Entry& entry : cache.entries()) {
    auto library = entry.usable && entry.problem.empty() ? cache.library(entry.key) : std::nullopt;
    if (!library) {
      ++result.skipped;
      continue;
    }
    libraries.push_back(std::move(*library));
    bundle.kernels.push_back({.key = entry.key, .library = libraries.back()});
  }
  TORCH_CHECK(!bundle.kernels.empty(), "the kernel cache ", cache.folder(), " has no kernels for this machine",
              result.skipped ? ", but kernels of another compiler or processor, or damaged ones" : "",
              ". Run your program once, so that its kernels are compiled.");
  const std::string file = make_kernel_bundle(bundle, key);
  write_text_file(path, file);
  result.kernels = static_cast<int64_t>(bundle.kernels.size());
  result.bytes = static_cast<int64_t>(file.size());
  return result;
}

KernelTransfer import_kernels(KernelCache& cache, const std::string& path, const std::vector<io::PublicKey>& trusted) {
  // A copy, because other programs could change the file after the signature is verified.
  const std::string file(io::as_text(MappedFile(path).bytes()));
  const KernelBundle bundle = open_kernel_bundle(io::as_bytes(file), trusted, path);
  const std::string problem = origin_problem(bundle.origin, cache.origin());
  TORCH_CHECK_VALUE(problem.empty(), path, ": ", problem);
  int64_t total = 0;
  for (const BundledKernel& kernel : bundle.kernels) total += static_cast<int64_t>(kernel.library.size());
  TORCH_CHECK_VALUE(total <= cache.limit_bytes(), path, " has kernels of ", total,
                    " bytes, but the cache can hold only ", cache.limit_bytes(), " bytes.");
  KernelTransfer result{.bytes = static_cast<int64_t>(file.size())};
  for (const BundledKernel& kernel : bundle.kernels) {
    if (cache.library(kernel.key)) {
      ++result.skipped;
      continue;
    }
    cache.add(kernel.key, std::string(kernel.library));
    ++result.kernels;
  }
  cache.make_room();
  return result;
}

}  // namespace bellows::compile_detail
