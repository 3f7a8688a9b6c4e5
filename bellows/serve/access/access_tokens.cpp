#include "bellows/serve/access/access_tokens.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netinet/in.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/serve/request_error.h"
#include "bellows/system/file.h"

namespace bellows::serve {

namespace {

bool valid_token(std::string_view token) {
  const auto valid = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-._~+/=").find(c) != std::string_view::npos;
  };
  return !token.empty() && std::all_of(token.begin(), token.end(), valid);
}

/// Names are part of log lines.
bool valid_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c != 0x7f; });
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

/// The time depends only on the size of `given`, so it does not tell how many bytes are right.
bool equal_in_constant_time(std::string_view token, std::string_view given) {
  size_t difference = token.size() ^ given.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ token[i % token.size()]);
  return *const_cast<const volatile size_t*>(&difference) == 0;
}

}  // namespace

AccessTokens::AccessTokens(std::string_view text, const std::string& where) {
  constexpr size_t short_token = 16;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view content = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (content.empty() || content.front() == '#') continue;
    const size_t colon = content.find(':');
    const bool named = colon != std::string_view::npos;
    const std::string_view token = trimmed(named ? content.substr(colon + 1) : content);
    const std::string name = named ? std::string(trimmed(content.substr(0, colon))) : "client " + std::to_string(line);
    TORCH_CHECK_VALUE(valid_token(token) && (!named || valid_name(name)), where, ":", line,
                      ": expected TOKEN or NAME:TOKEN. A token consists of letters, digits and -._~+/=, and a name "
                      "contains no spaces.");
    if (token.size() < short_token)
      log_warn(where, ":", line, ": this token has only ", token.size(), " characters. Use at least ", short_token,
               " random ones, such as those of `openssl rand -hex 16`.");
    entries_.push_back({name, std::string(token)});
  }
  TORCH_CHECK_VALUE(!entries_.empty(), where, ": expected at least one token, found none.");
}

std::optional<std::string> AccessTokens::client(std::string_view authorization) const {
  constexpr std::string_view scheme = "bearer ";
  if (authorization.size() <= scheme.size() || lower_case(authorization.substr(0, scheme.size())) != scheme)
    return std::nullopt;
  const std::string_view given = trimmed(authorization.substr(scheme.size()));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (equal_in_constant_time(entry.token, given)) found = &entry;
  }
  return found ? std::optional(found->name) : std::nullopt;
}

TokenFile::TokenFile(std::string path)
    : path_(std::move(path)), text_(read_text_file(path_)), tokens_(std::make_shared<AccessTokens>(text_, path_)) {}

std::string TokenFile::check(std::string_view authorization) const {
  std::shared_ptr<const AccessTokens> tokens;
  {
    const MutexLock lock(mutex_);
    tokens = tokens_;
  }
  std::optional<std::string> client = tokens->client(authorization);
  if (!client)
    throw RequestError(status_unauthorized, authorization.empty()
                                                ? "this server expects the header \"Authorization: Bearer TOKEN\"."
                                                : "the token in the header Authorization is not valid. Expected "
                                                  "\"Bearer TOKEN\" with a token of this server.");
  return *client;
}

void TokenFile::reload() {
  std::string problem;
  try {
    std::string text = read_text_file(path_);
    if (text == text_) return last_problem_.clear();
    text_ = std::move(text);
    auto tokens = std::make_shared<const AccessTokens>(text_, path_);
    const MutexLock lock(mutex_);
    tokens_ = std::move(tokens);
  } catch (const std::exception& error) {
    problem = user_message(error);
  }
  if (problem.empty())
    log_info("the tokens in ", path_, " were read again.");
  else if (problem != last_problem_)
    log_error(problem, " The old tokens stay valid.");
  last_problem_ = problem;
}

bool is_reachable(const std::string& address) {
  constexpr uint32_t loopback_network = 127;
  in_addr four{};
  if (inet_pton(AF_INET, address.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 != loopback_network;
  in6_addr six{};
  const std::string plain = address.substr(0, address.find('%'));  // without the name of the network interface
  if (inet_pton(AF_INET6, plain.c_str(), &six) != 1) return false;
  const bool mapped_loopback = IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == loopback_network;
  return !IN6_IS_ADDR_LOOPBACK(&six) && !mapped_loopback;
}

void check_exposure(const std::string& address, bool tokens, bool allowed) {
  TORCH_CHECK_VALUE(tokens || allowed || !is_reachable(address), "other machines can connect to `address` ", address,
                    ", but the server has no `token_file`. Create a file with one token per line, or set "
                    "`no_authentication` if every client in this network may use the server.");
}

}  // namespace bellows::serve
