#include "bellows/data/formats/shard_pattern.h"

#include <c10/util/Exception.h>
#include <glob.h>

#include <charconv>
#include <filesystem>

#include "bellows/io/network/http.h"

namespace bellows::data {

namespace {

namespace fs = std::filesystem;

/// Expands to "003" … "015" with the width of the first; nothing if `text` is not a range.
std::vector<std::string> expand_range(std::string_view text, const std::string& pattern) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos) return {};
  auto number = [&](std::string_view digits) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    TORCH_CHECK_VALUE(error == std::errc() && end == digits.data() + digits.size(),
                      "expand_shards: expected {first..last} with numbers, got {", text, "} in ", pattern, ".");
    return value;
  };
  const std::string_view first = text.substr(0, dots), last = text.substr(dots + 2);
  const uint64_t begin = number(first), end = number(last);
  TORCH_CHECK_VALUE(begin <= end && end - begin < 10'000'000,
                    "expand_shards: expected first <= last (and at most 10 million shards), got {", text, "} in ",
                    pattern, ".");
  std::vector<std::string> result;
  for (uint64_t i = 0; i <= end - begin; ++i) {
    std::string digits = std::to_string(begin + i);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    result.push_back(std::move(digits));
  }
  return result;
}

std::vector<std::string> split_list(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + separator.size();
  }
}

/// Splits at `::`, which may also occur inside the brackets of an IPv6 address.
std::vector<std::string> split_urls(std::string_view text) {
  std::vector<std::string> parts;
  for (std::string& part : split_list(text, "::")) {
    const bool in_brackets = !parts.empty() && parts.back().rfind('[') != std::string::npos &&
                             parts.back().find(']', parts.back().rfind('[')) == std::string::npos;
    if (in_brackets) {
      parts.back() += "::" + part;
    } else {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

void expand_braces(const std::string& prefix, std::string_view rest, const std::string& pattern,
                   std::vector<std::string>& out) {
  const size_t open = rest.find('{');
  if (open == std::string_view::npos) {
    out.push_back(prefix + std::string(rest));
    return;
  }
  const size_t close = rest.find('}', open);
  TORCH_CHECK_VALUE(close != std::string_view::npos, "expand_shards: \"{\" has no matching \"}\" in ", pattern, ".");
  const std::string_view inside = rest.substr(open + 1, close - open - 1);
  std::vector<std::string> choices = expand_range(inside, pattern);
  if (choices.empty()) choices = split_list(inside, ",");
  TORCH_CHECK_VALUE(out.size() < 10'000'000, "expand_shards: ", pattern, " names more than 10 million shards.");
  for (const std::string& choice : choices) {
    expand_braces(prefix + std::string(rest.substr(0, open)) + choice, rest.substr(close + 1), pattern, out);
  }
}

std::string escape_glob(const std::string& folder) {
  std::string escaped;
  for (const char c : folder) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// Params: folder – taken literally
void expand_glob(const fs::path& folder, const std::string& pattern, std::vector<std::string>& out) {
  const std::string path = (folder / pattern).string();
  if (pattern.find_first_of("*?[") == std::string::npos) {
    out.push_back(path);
    return;
  }
  glob_t found{};
  const int rc = glob((fs::path(escape_glob(folder.string())) / pattern).c_str(), 0, nullptr, &found);
  for (size_t i = 0; rc == 0 && i < found.gl_pathc; ++i) out.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  TORCH_CHECK_VALUE(rc == 0, "expand_shards: no file matches ", path, ". Check the path.");
}

/// An existing shard or folder with exactly the given name is taken literally.
void expand(const fs::path& folder, const std::string& pattern, std::vector<std::string>& out) {
  if (io::is_url(pattern)) {
    for (const std::string& part : split_urls(pattern))
      io::is_url(part) ? expand_braces("", part, pattern, out) : expand(folder, part, out);
    return;
  }
  const fs::path path = folder / pattern, parent = path.parent_path();
  const std::string name = path.filename().string();
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    out.push_back(path.string());
    return;
  }
  const bool is_joined = name.find("::") != std::string::npos;
  const bool is_in_known_folder = !is_joined && fs::is_directory(parent, ignored);
  if (!is_in_known_folder && pattern.find("::") != std::string::npos) {
    for (const std::string& part : split_list(pattern, "::")) expand(folder, part, out);
    return;
  }
  std::vector<std::string> globs;
  expand_braces("", is_in_known_folder ? name : pattern, pattern, globs);
  for (const std::string& glob : globs) expand_glob(is_in_known_folder ? parent : folder, glob, out);
}

}  // namespace

std::vector<std::string> expand_shards(const std::string& pattern, const std::string& folder) {
  std::vector<std::string> shards;
  expand(folder, pattern, shards);
  return shards;
}

}  // namespace bellows::data
