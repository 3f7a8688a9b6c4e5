#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "bellows/compile/jit/kernel_transfer.h"
#include "bellows/core/stats.h"
#include "bellows/system/file.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using compile_detail::KernelCache;
using compile_detail::KernelTransfer;
using nlohmann::ordered_json;

constexpr const char* trusted_keys_variable = "BELLOWS_TRUSTED_KEYS";

/// The UTC date of a time in seconds since 1970.
std::string date_of(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  char text[32] = "";
  if (::gmtime_r(&time, &parts)) std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

std::string state_of(const KernelCache::Entry& entry) {
  if (!entry.problem.empty()) return "refused:" + entry.problem;
  return entry.usable ? "usable" : "of another compiler or processor";
}

std::string list_text(const KernelCache& cache, const std::vector<KernelCache::Entry>& entries) {
  std::string text;
  int64_t bytes = 0;
  for (const KernelCache::Entry& entry : entries) {
    bytes += entry.bytes;
    text += entry.key.substr(0, 12) + pad_left(format_bytes(static_cast<double>(entry.bytes)), 12) + "  " +
            date_of(entry.used_s) + "  " + state_of(entry) + "\n";
  }
  return c10::str(cache.folder(), "\n", entries.size(), entries.size() == 1 ? " entry" : " entries", ", ",
                  format_bytes(static_cast<double>(bytes)), " of at most ",
                  format_bytes(static_cast<double>(cache.limit_bytes())), "\n", text);
}

ordered_json list_json(const KernelCache& cache, const std::vector<KernelCache::Entry>& entries) {
  ordered_json json = {
      {"folder", cache.folder()}, {"limit_bytes", cache.limit_bytes()}, {"entries", ordered_json::array()}};
  for (const KernelCache::Entry& entry : entries) {
    json["entries"].push_back({{"key", entry.key},
                               {"bytes", entry.bytes},
                               {"used", entry.used_s},
                               {"usable", entry.usable && entry.problem.empty()},
                               {"state", state_of(entry)}});
  }
  return json;
}

/// The keys of the publishers that the user trusts.
std::vector<io::PublicKey> trusted_keys(const std::string& option) {
  const char* const variable = std::getenv(trusted_keys_variable);
  if (!option.empty()) return io::PublicKey::read(option);
  if (!variable || !*variable)
    throw UsageError(c10::str("--key is missing. Pass the publisher's public key, or set ", trusted_keys_variable,
                              " to a file with the public keys that you trust."));
  return io::PublicKey::read(variable);
}

std::string kernels_text(int64_t count) {
  return c10::str(count, count == 1 ? " kernel" : " kernels");
}

void finish(const JsonTarget& target, const std::string& text, const ordered_json& json) {
  if (target != "-") Terminal().print(text);
  write_json(target, json_text(json));
}

int cache_list(const CacheArguments& arguments) {
  const KernelCache cache;
  const std::vector<KernelCache::Entry> entries = cache.entries();
  finish(arguments.json, list_text(cache, entries), list_json(cache, entries));
  return exit_done;
}

int cache_clear(const CacheArguments& arguments) {
  KernelCache cache;
  const int64_t removed = cache.clear();
  finish(arguments.json, c10::str("Deleted ", kernels_text(removed), " from ", cache.folder(), "\n"),
         {{"folder", cache.folder()}, {"deleted", removed}});
  return exit_done;
}

int cache_keygen(const CacheArguments& arguments) {
  const io::SigningKey key = io::SigningKey::generate();
  const std::string shown = arguments.key + ".pub", fingerprint = key.public_key().fingerprint();
  key.write_new(arguments.key);
  write_text_file(shown, key.public_key().pem());
  finish(arguments.json,
         c10::str("Private key: ", arguments.key, " (keep it secret)\nPublic key:  ", shown,
                  "\nFingerprint: ", fingerprint, "\n"),
         {{"private_key", arguments.key}, {"public_key", shown}, {"fingerprint", fingerprint}});
  return exit_done;
}

int cache_export(const CacheArguments& arguments) {
  const io::SigningKey key = io::SigningKey::read(arguments.key);
  const KernelCache cache;
  const KernelTransfer result = export_kernels(cache, arguments.bundle, key);
  std::string text = c10::str("Exported ", kernels_text(result.kernels), " to ", arguments.bundle, " (",
                              format_bytes(static_cast<double>(result.bytes)), "), signed with ",
                              key.public_key().fingerprint(), "\n");
  if (result.skipped > 0)
    text += c10::str("Skipped ", kernels_text(result.skipped), " that `bellows cache list` shows as not usable.\n");
  finish(arguments.json, text,
         {{"bundle", arguments.bundle},
          {"kernels", result.kernels},
          {"skipped", result.skipped},
          {"bytes", result.bytes},
          {"fingerprint", key.public_key().fingerprint()}});
  return exit_done;
}

int cache_import(const CacheArguments& arguments) {
  const std::vector<io::PublicKey> keys = trusted_keys(arguments.key);
  KernelCache cache;
  const KernelTransfer result = import_kernels(cache, arguments.bundle, keys);
  std::string text = c10::str("Imported ", kernels_text(result.kernels), " into ", cache.folder(), "\n");
  if (result.skipped > 0) text += c10::str("The cache already had ", kernels_text(result.skipped), ".\n");
  finish(
      arguments.json, text,
      {{"folder", cache.folder()}, {"kernels", result.kernels}, {"present", result.skipped}, {"bytes", result.bytes}});
  return exit_done;
}

}  // namespace

int run_cache(const std::string& action, const CacheArguments& arguments) {
  check_output_file(arguments.json);
  if (action == "list") return cache_list(arguments);
  if (action == "clear") return cache_clear(arguments);
  if (action == "keygen") return cache_keygen(arguments);
  return action == "export" ? cache_export(arguments) : cache_import(arguments);
}

}  // namespace bellows::cli
