#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/io/signature.h"

namespace bellows::compile_detail {

/// The name of an entry of a kernel cache is this many hexadecimal digits.
inline constexpr size_t kernel_key_digits = 40;

/// The machine for which kernels were compiled.
struct KernelOrigin {
  std::string bellows;    ///< version of Bellows
  std::string format;     ///< format of the cache's entries (KernelCache)
  std::string compiler;   ///< version and flags of the compiler
  std::string processor;  ///< properties of the processor from which -march=native is derived
  std::string c_library;  ///< version of glibc, such as "2.36"
};

/// A kernel in a bundle.
struct BundledKernel {
  std::string key;           ///< name of the cache entry: the digest of source, compiler, flags and processor
  std::string_view library;  ///< content of the shared library
};

/// The content of a bundle. The libraries refer to the bytes of the file.
struct KernelBundle {
  KernelOrigin origin;
  std::vector<BundledKernel> kernels;
};

/// Returns a bundle: one file with kernels and the signature of their publisher. All numbers are little-endian.
///
///     8 bytes  "BLWKRNLS"
///     u32      version of the layout, 1
///     u64      size of the file
///     32 bytes public key of the signer
///     5 texts  KernelOrigin, each as u32 size and bytes
///     u32      number of kernels; for each kernel in ascending order of keys:
///              40 bytes key, u64 size of the library, 64 digits of its SHA-256, the library
///     64 bytes Ed25519 signature of all bytes before it
/// Throws: c10::ValueError if two kernels have the same key, or if the bundle would exceed 1 GiB
std::string make_kernel_bundle(const KernelBundle& bundle, const io::SigningKey& key);

/// Verifies and parses a bundle.
/// Params: trusted – the keys of publishers whose code may run in this process
///         name – name of the file in messages
/// Throws: c10::ValueError if the bytes are not a bundle, have a newer version, are truncated, were changed, or are not
///         signed with a trusted key
KernelBundle open_kernel_bundle(io::ByteSpan bytes, const std::vector<io::PublicKey>& trusted, const std::string& name);

/// Parses a bundle without verifying its signature.
/// Throws: c10::ValueError if the bytes are not a bundle (the message states the position)
KernelBundle parse_kernel_bundle(io::ByteSpan bytes, const std::string& name);

/// Returns why kernels of `bundled` cannot run on this machine, or "" if they can.
std::string origin_problem(const KernelOrigin& bundled, const KernelOrigin& here);

}  // namespace bellows::compile_detail
