#include "bellows/io/network/hub.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <tuple>
#include <utility>
#include <vector>

#include "bellows/io/hash.h"

namespace bellows::io {

namespace {

constexpr std::string_view hub_scheme = "hf://", checksum_mark = "#sha256=";
constexpr std::string_view hub_form = "hf://ORG/NAME, hf://ORG/NAME@REVISION or hf://ORG/NAME@REVISION/FILE";
constexpr std::string_view decimal_digits = "0123456789", hex_digits = "0123456789abcdef";
constexpr std::string_view latin_letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

bool consists_of(std::string_view text, const std::string& characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

/// A name that needs no encoding in a URL.
bool is_plain_name(std::string_view name) {
  static const std::string plain = std::string(latin_letters) + std::string(decimal_digits) + "-_.";
  return !name.empty() && name != "." && name != ".." && consists_of(name, plain);
}

std::vector<std::string> segments_of(std::string_view path) {
  std::vector<std::string> segments;
  for (size_t begin = 0;;) {
    const size_t slash = path.find('/', begin);
    segments.emplace_back(path.substr(begin, slash - begin));
    if (slash == std::string_view::npos) return segments;
    begin = slash + 1;
  }
}

std::string url_encoded(std::string_view text, std::string_view kept = "") {
  static const std::string plain = std::string(latin_letters) + std::string(decimal_digits) + "-_.~";
  std::string encoded;
  for (const char c : text) {
    if (plain.find(c) != std::string::npos || kept.find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
    }
  }
  return encoded;
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The address without a checksum, and the checksum in lower case ("" if there is none).
std::pair<std::string, std::string> split_checksum(const std::string& address) {
  const size_t mark = address.find('#');
  if (mark == std::string::npos) return {address, ""};
  std::string checksum = address.substr(std::min(mark + checksum_mark.size(), address.size()));
  std::ranges::transform(checksum, checksum.begin(), [](unsigned char c) { return std::tolower(c); });
  TORCH_CHECK_VALUE(std::string_view(address).substr(mark).starts_with(checksum_mark) && checksum.size() == 64 &&
                        consists_of(checksum, std::string(hex_digits)),
                    printable(address, 200), ": expected #sha256= and 64 hexadecimal digits after the address, got ",
                    printable(address.substr(mark), 100), ".");
  return {address.substr(0, mark), checksum};
}

std::string hub_endpoint() {
  std::string server = environment_value("HF_ENDPOINT");
  if (server.empty()) server = "https://huggingface.co";
  TORCH_CHECK_VALUE(is_url(server), "HF_ENDPOINT: expected https://… or http://…, got ", printable(server, 100), ".");
  while (server.ends_with('/')) server.pop_back();
  return server;
}

std::string hub_token() {
  const std::string value = environment_value("HF_TOKEN");
  const bool usable = std::ranges::all_of(value, [](char c) { return c > ' ' && c < 127; });
  TORCH_CHECK_VALUE(usable,
                    "HF_TOKEN: expected a token of letters, digits and signs, got one that contains spaces or "
                    "other characters.");
  return value;
}

bool is_offline() {
  const std::string value = environment_value("HF_HUB_OFFLINE");
  return value == "1" || value == "true" || value == "TRUE" || value == "yes" || value == "YES" || value == "on" ||
         value == "ON";
}

/// Where an address leads, and how the server is asked.
struct FetchRequest {
  std::string url, checksum;
  bool of_hub = false, with_token = false;
  bool fixed = false;  ///< the content cannot change
  FileCacheOptions options;
};

FetchRequest request_for(const std::string& address, const FileCacheOptions& options) {
  FetchRequest request;
  request.options = options;
  std::tie(request.url, request.checksum) = split_checksum(address);
  request.fixed = !request.checksum.empty();
  request.options.show_progress = true;
  if (!is_hub_address(address)) {
    TORCH_CHECK_VALUE(is_url(address), "expected an address hf://…, https://… or http://…, got ",
                      printable(address, 100), ".");
    return request;
  }
  const HubAddress hub = parse_hub_address(request.url);
  TORCH_CHECK_VALUE(!hub.file.empty(), address, " names a repository. Expected a file: ", hub.text(), "/FILE.");
  request.url = c10::str(hub_endpoint(), "/", hub.repository, "/resolve/", url_encoded(hub.revision), "/",
                         url_encoded(hub.file, "/"));
  request.of_hub = true;
  request.options.http.bearer_token = hub_token();
  request.with_token = !request.options.http.bearer_token.empty();
  request.fixed = request.fixed || (hub.revision.size() == 40 && consists_of(hub.revision, std::string(hex_digits)));
  return request;
}

/// How to fix a refused request.
std::string hint_for(const FetchRequest& request, const std::string& address, long status) {
  if (status == 404) {
    return request.of_hub ? "Check the names of the repository, the revision and the file." : "Check the address.";
  }
  if (!request.of_hub) return status == 403 ? "If the URL is signed, it may have expired." : "Check the address.";
  const bool no_access = status == 401 || status == 403;
  if (!no_access) return "Check the address, and HF_ENDPOINT if it is set.";
  const std::string page = "https://huggingface.co/" + parse_hub_address(address).repository;
  if (!request.with_token)
    return "The repository does not exist, or it is private or gated. If you have access, set the environment variable "
           "HF_TOKEN to your access token.";
  return "The token in HF_TOKEN is invalid, or it gives no access to this repository. Check the token, and the access "
         "conditions on " +
         page + ".";
}

CachedFile open_file(FileCache& cache, const FetchRequest& request, const std::string& address) {
  if (request.fixed || is_offline()) {
    if (CachedFile file = cache.cached(request.url); file.content) return file;
    TORCH_CHECK_VALUE(!is_offline(), address, " is not in the cache (", cache.folder(),
                      "), and HF_HUB_OFFLINE is set. Run once without HF_HUB_OFFLINE.");
  }
  try {
    return cache.open(request.url);
  } catch (const HttpRefusal& refusal) {
    const std::string message = c10::str(address, ": the server answered with status ", refusal.status(), " (",
                                         public_url(request.url), "). ", hint_for(request, address, refusal.status()));
    if (refusal.status() == 404)
      throw MissingRemoteFile({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
    TORCH_CHECK_VALUE(false, message);
  }
}

}  // namespace

std::string HubAddress::text() const {
  std::string text = std::string(hub_scheme) + repository;
  if (revision != "main") text += "@" + url_encoded(revision);
  return file.empty() ? text : text + "/" + file;
}

HubAddress HubAddress::with_file(std::string_view name) const {
  return {repository, revision, std::string(name)};
}

bool is_hub_address(std::string_view name) {
  return name.starts_with(hub_scheme);
}

bool is_remote_address(std::string_view name) {
  return is_hub_address(name) || is_url(name);
}

HubAddress parse_hub_address(std::string_view address) {
  const std::string shown = printable(address, 200);
  TORCH_CHECK_VALUE(is_hub_address(address), "expected ", hub_form, ", got ", shown, ".");
  std::vector<std::string> parts = segments_of(address.substr(0, address.find('#')).substr(hub_scheme.size()));
  TORCH_CHECK_VALUE(parts[0] != "datasets" && parts[0] != "spaces", shown, ": expected a model repository, got ",
                    parts[0], ". Only model repositories are supported.");
  TORCH_CHECK_VALUE(parts.size() >= 2, shown, ": expected ", hub_form, ".",
                    parts[0] == "gpt2" || parts[0].starts_with("bert-") || parts[0].starts_with("distilbert-")
                        ? " This repository is now in an organization, such as openai-community/gpt2."
                        : "");
  HubAddress result;
  const size_t at = parts[1].find('@');
  if (at != std::string::npos) {
    result.revision = parts[1].substr(at + 1);
    parts[1].resize(at);
    if (result.revision == "refs" && parts.size() >= 4) {
      result.revision += "/" + parts[2] + "/" + parts[3];
      parts.erase(parts.begin() + 2, parts.begin() + 4);
    }
    for (size_t slash = 0; (slash = result.revision.find("%2F", slash)) != std::string::npos;)
      result.revision.replace(slash, 3, "/");
  }
  TORCH_CHECK_VALUE(is_plain_name(parts[0]) && is_plain_name(parts[1]), shown, ": expected ", hub_form,
                    ", with letters, digits, \"-\", \"_\" and \".\" in ORG and NAME.");
  result.repository = parts[0] + "/" + parts[1];
  for (const std::string& part : segments_of(result.revision)) {
    TORCH_CHECK_VALUE(is_plain_name(part), shown, ": expected a branch, a tag or a commit after \"@\", got ",
                      printable(result.revision, 100), ".");
  }
  for (size_t i = 2; i < parts.size(); ++i) {
    TORCH_CHECK_VALUE(!parts[i].empty() && parts[i] != "." && parts[i] != "..", shown,
                      ": expected the path of a file in the repository after ", result.repository, ", such as ",
                      hub_scheme, result.repository, "/model.safetensors.");
    result.file += (i > 2 ? "/" : "") + parts[i];
  }
  return result;
}

RemoteFile fetch_file(const std::string& address, const FileCacheOptions& options) {
  const FetchRequest request = request_for(address, options);
  FileCache cache(request.options);
  const CachedFile file = open_file(cache, request, address);
  if (request.checksum.empty()) return {file.content};
  const std::string found = hash_hex("sha256", file.content->bytes());
  if (found == request.checksum) return {file.content};
  cache.doubt(request.url, file.version);
  TORCH_CHECK_VALUE(false, address, ": expected the SHA-256 ", request.checksum, ", found ", found, " (",
                    file.content->bytes().size(),
                    " bytes). The file on the server is another one, or the download is "
                    "damaged. Check the checksum. The file is downloaded again the next time.");
}

}  // namespace bellows::io
