#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <string_view>

#include "bellows/io/network/file_cache.h"
#include "bellows/system/file.h"

namespace bellows::io {

/// A file of a model repository on the Hugging Face Hub, or the repository itself.
struct HubAddress {
  std::string repository;         ///< "org/name"
  std::string revision = "main";  ///< a branch, a tag or a commit
  std::string file;               ///< path in the repository; "" for the repository

  /// Returns the address `hf://org/name@revision/file`, without the revision if it is main.
  std::string text() const;
  /// Returns the address of another file of the same repository and revision.
  HubAddress with_file(std::string_view name) const;
};

/// True for `hf://…`.
bool is_hub_address(std::string_view name);
/// True for `hf://…`, `http://…` and `https://…`.
bool is_remote_address(std::string_view name);

/// Parses `hf://org/name`, `hf://org/name@revision` and `hf://org/name@revision/file`. A revision that contains a slash is
/// written with %2F, except for refs/pr/N. A part `#sha256=…` at the end is ignored.
/// Throws: c10::ValueError if the address has another form (the message states the form)
HubAddress parse_hub_address(std::string_view address);

/// A file that was fetched from an address. It stays in the cache while this object exists.
struct RemoteFile {
  std::shared_ptr<const MappedFile> content;
  const std::string& path() const { return content->path(); }
};

/// The server has no such file.
class MissingRemoteFile : public c10::ValueError {
  using c10::ValueError::ValueError;
};

/// Fetches a file into the cache (FileCache), and returns the local copy. A cut download is resumed, also in another
/// process. The log shows the progress. If the address names a checksum, or the revision is a complete commit hash, the
/// cached copy is used without contacting the server.
///
/// The environment sets the server and the access, with the variables of the Python package huggingface_hub: HF_ENDPOINT
/// is the server [default: https://huggingface.co], HF_TOKEN is sent to this server only, and HF_HUB_OFFLINE=1 uses only
/// cached files. These variables apply to hf:// addresses, and HF_HUB_OFFLINE applies to all addresses.
/// Params:  address – `hf://org/name[@revision]/file`, or the URL of a file; both can end in `#sha256=HEX`
/// Cost:    one request, and the download if the file is not in the cache. With a checksum, one pass over the file
/// Threads: thread-safe
/// Throws:  c10::ValueError if the address or an environment variable is invalid, or if the server refuses the request
///          (MissingRemoteFile for status 404). Also c10::ValueError if the checksum differs; the file is then fetched
///          again the next time. Also c10::ValueError if the file is not in the cache and HF_HUB_OFFLINE is set. The
///          other exceptions are those of FileCache::open()
RemoteFile fetch_file(const std::string& address, const FileCacheOptions& options = {});

}  // namespace bellows::io
