#include "bellows/io/network/http.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "bellows/core/log.h"
#include "bellows/core/seed.h"
#include "bellows/core/text.h"
#include "bellows/io/network/http_transfer.h"
#include "bellows/system/stop.h"

namespace bellows::io {

namespace {

constexpr uint64_t enough_progress = 1 << 20;
constexpr int64_t most_backoff_ms = 30'000;
constexpr int64_t most_retry_after_ms = 60'000;

/// Forwards all calls and records the state of the sink.
class TrackedSink final : public HttpSink {
 public:
  TrackedSink(HttpSink& sink, HttpFile file, uint64_t offset) : sink_(sink), file_(std::move(file)), offset_(offset) {}
  bool begin(const HttpFile& file, uint64_t offset) override {
    file_ = file;
    offset_ = offset;
    return sink_.begin(file, offset);
  }
  void write(ByteSpan bytes) override {
    sink_.write(bytes);
    offset_ += bytes.size();
  }
  void forget() {
    file_ = {};
    offset_ = 0;
  }
  const HttpFile& file() const { return file_; }
  uint64_t offset() const { return offset_; }

 private:
  HttpSink& sink_;
  HttpFile file_;
  uint64_t offset_;
};

/// Waits before retry number `failures`; returns early on a stop request.
void wait_before(int failures, const std::string& url, const HttpAnswer& answer, const HttpOptions& options,
                 const std::stop_token& stop) {
  const int64_t full = std::min(options.backoff_ms << std::min(failures - 1, 20), most_backoff_ms);
  // Intentionally not reproducible: clients that failed together must not retry at the same time.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  RandomStream random(static_cast<uint64_t>(now));
  const int64_t jittered = full / 2 + static_cast<int64_t>(random.uniform() * 0.5 * static_cast<double>(full));
  const int64_t asked = std::min(answer.retry_after_s * 1000, most_retry_after_ms);
  const std::chrono::milliseconds wait(std::max(jittered, asked));
  if (wait >= std::chrono::seconds(5))
    log_warn("http: ", public_url(url), ": ", answer.trouble, ". The next attempt starts in ", wait.count() / 1000,
             " s (", failures + 1, " of ", options.attempts, ").");
  LongWait pause(public_url(url) + ": " + answer.trouble);
  const auto end = LongWait::Clock::now() + wait;
  while (LongWait::Clock::now() < end && !stop.stop_requested()) pause.sleep(std::chrono::milliseconds(5));
}

std::string failure_text(const std::string& url, const HttpAnswer& answer, const TrackedSink& sink) {
  std::string text = c10::str("http: cannot download ", public_url(url), ": ", answer.trouble);
  if (sink.file().size > 0)
    text += c10::str(" (", sink.offset(), " of ", sink.file().size, " bytes are already downloaded)");
  return text + ".";
}

/// Throws the exception for an error that another request would not change.
[[noreturn]] void refuse(const std::string& text, long status) {
  const std::string message = c10::str(text, status == 403 ? " If the URL is signed, it may have expired." : "",
                                       status >= 300 && status < 500 ? " Check the URL." : "");
  if (status >= 300) throw HttpRefusal({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message, status);
  C10_THROW_ERROR(ValueError, message);
}

/// Repeats requests until the sink has all bytes or does not need any. Returns the last response.
/// Params: end – requests only the bytes before it; for a known file, no other version is accepted
HttpAnswer get_all(const std::string& url, TrackedSink& sink, std::optional<uint64_t> end, const HttpOptions& options,
                   const std::stop_token& stop) {
  const bool part = end && sink.file().size > 0;
  for (int failures = 0;;) {
    HttpTransfer transfer(url, options, stop);
    HttpAnswer answer = transfer.run(sink.file(), sink.offset(), end, sink);
    if (answer.status == 304 || !answer.wanted || (part && answer.start_again)) return answer;
    if (answer.trouble.empty()) {
      if (sink.offset() >= end.value_or(sink.file().size)) return answer;
      answer.trouble = "the response ended early";
      answer.can_repeat = true;
    }
    if (end && answer.status == 416 && answer.file.size == 0) return answer;  // an empty file has no first byte
    if (transfer.received() >= enough_progress) failures = 0;
    const std::string text = failure_text(url, answer, sink);
    if (!answer.can_repeat) refuse(text, answer.status);
    TORCH_CHECK(++failures < options.attempts, text, " ", options.attempts, " attempts failed.");
    log_debug(text, " Retrying.");
    if (answer.start_again) sink.forget();
    wait_before(failures, url, answer, options, stop);
  }
}

/// Only receives the version of the file.
struct LookingSink final : HttpSink {
  bool begin(const HttpFile&, uint64_t) override { return false; }
  void write(ByteSpan) override {}
};

/// Receives one part of a file.
class PartSink final : public HttpSink {
 public:
  PartSink(uint64_t offset, std::span<std::byte> out) : position_(offset), rest_(out) {}
  bool begin(const HttpFile&, uint64_t offset) override { return offset == position_; }
  void write(ByteSpan bytes) override {
    bytes = bytes.first(std::min(bytes.size(), rest_.size()));  // a server may send more than requested
    std::ranges::copy(bytes, rest_.begin());
    rest_ = rest_.subspan(bytes.size());
    position_ += bytes.size();
  }
  bool complete() const { return rest_.empty(); }

 private:
  uint64_t position_;
  std::span<std::byte> rest_;
};

/// The query parameters that a signature adds; the one that holds the signature identifies the style.
struct SignatureStyle {
  std::string_view mark;
  std::vector<std::string_view> names;
};

std::vector<std::string> split_query(std::string_view url) {
  std::vector<std::string> parameters;
  const size_t question = url.find('?');
  if (question == std::string_view::npos) return parameters;
  std::string_view query = url.substr(question + 1);
  for (query = query.substr(0, query.find('#')); !query.empty();) {
    parameters.emplace_back(query.substr(0, query.find('&')));
    query.remove_prefix(std::min(query.size(), parameters.back().size() + 1));
  }
  return parameters;
}

std::string parameter_name(std::string_view parameter) {
  return lower_case(parameter.substr(0, parameter.find('=')));
}

/// The signature's parameters in this query, apart from those that start with x-amz- or x-goog-.
std::vector<std::string_view> signature_names(const std::vector<std::string>& parameters) {
  static const std::vector<SignatureStyle> styles{
      {"signature", {"signature", "expires", "awsaccesskeyid", "googleaccessid", "key-pair-id", "policy"}},
      {"sig",
       {"sig", "se", "sp", "sv", "sr", "st", "spr", "sip", "ss", "srt", "skoid", "sktid", "skt", "ske", "sks", "skv"}}};
  std::vector<std::string_view> names;
  for (const SignatureStyle& style : styles) {
    for (const std::string& parameter : parameters) {
      if (parameter_name(parameter) == style.mark) names.insert(names.end(), style.names.begin(), style.names.end());
    }
  }
  return names;
}

/// The URL without user and password, query and fragment.
std::string bare_url(std::string_view url) {
  const size_t host = url.find("://") + 3;
  const size_t end = url.find_first_of("?#", host), path = std::min(url.find('/', host), end);
  const size_t at = url.substr(0, path).rfind('@');
  const size_t begin = at == std::string_view::npos || at < host ? host : at + 1;
  return std::string(url.substr(0, host)) + std::string(url.substr(begin, end - begin));
}

}  // namespace

bool is_url(std::string_view name) {
  return name.starts_with("http://") || name.starts_with("https://");
}

std::string public_url(std::string_view url) {
  return is_url(url) ? bare_url(url) : std::string(url);
}

std::string unsigned_url(std::string_view url) {
  std::string result = public_url(url);
  if (!is_url(url)) return result;
  const std::vector<std::string> parameters = split_query(url);
  const std::vector<std::string_view> signature = signature_names(parameters);
  char joint = '?';
  for (const std::string& parameter : parameters) {
    const std::string name = parameter_name(parameter);
    if (name.starts_with("x-amz-") || name.starts_with("x-goog-")) continue;
    if (std::find(signature.begin(), signature.end(), name) != signature.end()) continue;
    result += joint + parameter;
    joint = '&';
  }
  return result;
}

HttpFile http_get(const std::string& url, const HttpFile& known, uint64_t offset, HttpSink& sink,
                  const HttpOptions& options, const std::stop_token& stop) {
  TORCH_CHECK_VALUE(is_url(url), "http_get: expected http://… or https://…, got ", printable(url, 20), ".");
  TrackedSink tracked(sink, known, offset);
  get_all(url, tracked, std::nullopt, options, stop);
  return tracked.file();
}

bool http_read(const std::string& url, const HttpFile& known, uint64_t offset, std::span<std::byte> out,
               const HttpOptions& options, const std::stop_token& stop) {
  TORCH_CHECK_VALUE(is_url(url), "http_read: expected http://… or https://…, got ", printable(url, 20), ".");
  TORCH_CHECK_VALUE(out.size() <= known.size && offset <= known.size - out.size(), "http_read: expected a part of the ",
                    known.size, " bytes of ", public_url(url), ", got ", out.size(), " bytes from byte ", offset, ".");
  if (out.empty()) return true;
  PartSink part(offset, out);
  TrackedSink tracked(part, known, offset);
  get_all(url, tracked, offset + out.size(), options, stop);
  return part.complete();
}

HttpFile http_look(const std::string& url, const HttpOptions& options, const std::stop_token& stop) {
  TORCH_CHECK_VALUE(is_url(url), "http_look: expected http://… or https://…, got ", printable(url, 20), ".");
  LookingSink looking;
  TrackedSink tracked(looking, {}, 0);
  return get_all(url, tracked, 1, options, stop).file;
}

}  // namespace bellows::io
