#include "bellows/io/network/http_transfer.h"

#include <c10/util/Exception.h>
#include <curl/curl.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/core/text.h"
#include "bellows/system/no_sigpipe.h"
#include "bellows/system/stop.h"

namespace bellows::io {

namespace {

std::optional<uint64_t> header_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() && value <= INT64_MAX ? std::optional(value) : std::nullopt;
}

std::string_view header_value(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\n')) text.remove_suffix(1);
  return text;
}

constexpr size_t most_refusal_bytes = 4096;

using CurlHeaders = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

/// Idle libcurl handles. Each keeps its connections, so that the next request can reuse them.
/// Threads: thread-safe. A child of fork() starts without handles, because the connections belong to its parent
class HandlePool {
 public:
  static HandlePool& instance() {
    static auto* const pool = new HandlePool;  // never destroyed: threads may outlive main
    return *pool;
  }

  CURL* take() {
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        CURL* const handle = idle_.back();
        idle_.pop_back();
        return handle;
      }
    }
    CURL* const handle = curl_easy_init();
    TORCH_CHECK(handle, "http: out of memory.");
    return handle;
  }

  void give_back(CURL* handle) {
    curl_easy_reset(handle);  // keeps the connections, resets the pointers to the caller's options
    {
      const MutexLock lock(mutex_);
      if (idle_.size() < idle_.capacity()) return idle_.push_back(handle);
    }
    curl_easy_cleanup(handle);
  }

 private:
  static constexpr size_t most_idle = 16;

  HandlePool() {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    idle_.reserve(most_idle);
    // Not checked: the first handler locks the mutex, and the others unlock it.
    ::pthread_atfork([]() BELLOWS_NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); },
                     []() BELLOWS_NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); },
                     []() BELLOWS_NO_THREAD_SAFETY_ANALYSIS {
                       instance().idle_.clear();  // no cleanup, which would close the parent's connections
                       instance().mutex_.unlock();
                     });
  }

  Mutex mutex_;
  std::vector<CURL*> idle_ BELLOWS_GUARDED_BY(mutex_);
};

struct HandleReturn {
  void operator()(CURL* handle) const { HandlePool::instance().give_back(handle); }
};
using CurlHandle = std::unique_ptr<CURL, HandleReturn>;

/// True for errors of the network or of a busy server, which may not occur again.
bool is_passing(CURLcode code) {
  constexpr std::array passing{CURLE_COULDNT_RESOLVE_PROXY,
                               CURLE_COULDNT_RESOLVE_HOST,
                               CURLE_COULDNT_CONNECT,
                               CURLE_PARTIAL_FILE,
                               CURLE_OPERATION_TIMEDOUT,
                               CURLE_SSL_CONNECT_ERROR,
                               CURLE_GOT_NOTHING,
                               CURLE_SEND_ERROR,
                               CURLE_RECV_ERROR,
                               CURLE_HTTP2,
                               CURLE_HTTP2_STREAM,
                               CURLE_WEIRD_SERVER_REPLY};
  return std::find(passing.begin(), passing.end(), code) != passing.end();
}

bool is_passing(long status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

/// A strong validator, as If-Range requires; "" if there is none.
std::string strong_validator(const HttpFile& file) {
  if (!file.etag.empty() && !file.etag.starts_with("W/")) return file.etag;
  return file.last_modified;
}

CurlHeaders make_headers(const HttpFile& known, uint64_t offset, bool part, const std::string& token) {
  curl_slist* list = curl_slist_append(nullptr, "Accept-Encoding: identity");
  const auto add = [&](const std::string& line) { list = curl_slist_append(list, line.c_str()); };
  if (!token.empty()) add("Authorization: Bearer " + token);  // libcurl does not send it to other hosts
  if (offset > 0 && offset == known.size) {
    if (!known.etag.empty()) {
      add("If-None-Match: " + known.etag);
    } else if (!known.last_modified.empty()) {
      add("If-Modified-Since: " + known.last_modified);
    }
  } else if ((offset > 0 || part) && !strong_validator(known).empty()) {
    add("If-Range: " + strong_validator(known));
  }
  return {list, &curl_slist_free_all};
}

}  // namespace

void HttpHeaders::take(std::string_view line) {
  if (line.starts_with("HTTP/")) {
    *this = {};
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = lower_case(line.substr(0, colon));
  const std::string_view value = header_value(line.substr(colon + 1));
  if (name == "etag") file.etag = value;
  if (name == "last-modified") file.last_modified = value;
  if (name == "content-length") length = header_number(value);
  if (name == "content-range") {
    const size_t slash = value.find('/');
    if (slash != std::string_view::npos) total = header_number(value.substr(slash + 1));
    if (value.starts_with("bytes ")) range_begin = header_number(value.substr(6));
  }
}

/// libcurl's callbacks; no exception may leave them.
struct HttpTransfer::Callbacks {
  static size_t header(char* data, size_t, size_t count, void* self) {
    static_cast<HttpTransfer*>(self)->headers_.take({data, count});
    return count;
  }
  static size_t body(char* data, size_t, size_t count, void* self) {
    auto* transfer = static_cast<HttpTransfer*>(self);
    try {
      return transfer->take_body(as_bytes({data, count})) ? count : CURL_WRITEFUNC_ERROR;
    } catch (...) {
      transfer->sink_error_ = std::current_exception();
      return CURL_WRITEFUNC_ERROR;
    }
  }
  static int progress(void* self, curl_off_t, curl_off_t bytes, curl_off_t, curl_off_t) {
    return static_cast<HttpTransfer*>(self)->may_go_on(bytes) ? 0 : 1;
  }
};

/// Returns false on a stop request, or if nothing was received for too long. libcurl's own check uses an average over
/// seconds.
bool HttpTransfer::may_go_on(int64_t bytes) {
  const auto now = Clock::now();
  if (bytes != last_bytes_) {
    last_bytes_ = bytes;
    last_change_ = now;
    silence_.restart();
  }
  stalled_ = now - last_change_ > std::chrono::milliseconds(options_.stall_timeout_ms);
  silence_.note();
  return !stalled_ && !stop_.stop_requested() && !stop_requested();
}

/// True if the response contains the bytes that the sink needs; calls the sink's begin().
bool HttpTransfer::begin() {
  begun_ = true;
  const long status = this->status();
  const std::optional<uint64_t> size = status == 206 ? headers_.total : headers_.length;
  if (!size) {
    mismatch_ = "the response has no file size";
    return false;
  }
  headers_.file.size = *size;
  if (end_ && status == 200) {  // ranges are not supported, or the file has changed
    wanted_ = false;
    return false;
  }
  const bool same = headers_.file.size == known_.size && (known_.etag.empty() || headers_.file.etag == known_.etag);
  if (status == 206 && (headers_.range_begin != offset_ || (known_.size > 0 && !same))) {
    start_again_ = true;
    mismatch_ = "the response contains a part of another file";
    return false;
  }
  wanted_ = sink_->begin(headers_.file, status == 206 ? offset_ : 0);
  return wanted_;
}

bool HttpTransfer::take_body(ByteSpan bytes) {
  const long status = this->status();
  if (status != 200 && status != 206) {
    refusal_ += as_text(bytes.first(std::min(bytes.size(), most_refusal_bytes - refusal_.size())));
    return true;
  }
  if (!begun_ && !begin()) return false;
  sink_->write(bytes);
  received_ += bytes.size();
  return true;
}

long HttpTransfer::status() const {
  long status = 0;
  curl_easy_getinfo(static_cast<CURL*>(curl_), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

/// S3 and similar servers name the reason in <Code>; the rest of the body may contain signatures.
void HttpTransfer::describe_refusal(HttpAnswer& answer) const {
  answer.trouble = c10::str("the server answered with status ", answer.status);
  const size_t begin = refusal_.find("<Code>"), end = refusal_.find("</Code>");
  if (begin < end && end != std::string::npos)
    answer.trouble += " " + printable(std::string_view(refusal_).substr(begin + 6, end - begin - 6));
  answer.can_repeat = is_passing(answer.status) || (answer.status == 416 && offset_ > 0);
  answer.start_again = answer.status == 416;
}

void HttpTransfer::set_options(char* reason) {
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(static_cast<CURL*>(curl_), option, value); };
  set(CURLOPT_URL, url_.c_str());
  set(CURLOPT_USERAGENT, "bellows");
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, 10L);
  set(CURLOPT_MAXCONNECTS, 2L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout_ms));
  set(CURLOPT_ERRORBUFFER, reason);
  set(CURLOPT_HEADERFUNCTION, &Callbacks::header);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_WRITEFUNCTION, &Callbacks::body);
  set(CURLOPT_WRITEDATA, this);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Callbacks::progress);
  set(CURLOPT_XFERINFODATA, this);
  const std::string range = c10::str(offset_, "-", end_ ? std::to_string(*end_ - 1) : "");  // libcurl copies it
  if (end_ || offset_ > 0) set(CURLOPT_RANGE, range.c_str());
}

HttpAnswer HttpTransfer::run(const HttpFile& known, uint64_t offset, std::optional<uint64_t> end, HttpSink& sink) {
  const NoSigpipe no_sigpipe;
  std::array<char, CURL_ERROR_SIZE> reason{};  // used until the handle is given back
  const CurlHandle handle(HandlePool::instance().take());
  curl_ = handle.get();
  sink_ = &sink;
  known_ = known;
  const bool complete = offset > 0 && offset == known.size;
  offset_ = complete || (!end && strong_validator(known).empty()) ? 0 : offset;
  end_ = end;
  const CurlHeaders headers = make_headers(known, complete ? offset : offset_, end.has_value(), options_.bearer_token);
  set_options(reason.data());
  curl_easy_setopt(handle.get(), CURLOPT_HTTPHEADER, headers.get());
  last_change_ = Clock::now();
  silence_.restart();
  const CURLcode code = curl_easy_perform(handle.get());
  if (sink_error_) std::rethrow_exception(sink_error_);
  TORCH_CHECK(!stop_.stop_requested(), "http: ", public_url(url_), ": stopped on request.");
  throw_if_stopped("downloading " + public_url(url_));
  return answer_of(code, reason.data());
}

/// Params: reason – libcurl's message for `code`, or ""
HttpAnswer HttpTransfer::answer_of(int code, const char* reason) {
  HttpAnswer answer{.status = status()};
  const bool has_body = answer.status == 200 || answer.status == 206;
  if (code == CURLE_OK && has_body && !begun_) begin();
  answer.wanted = wanted_;
  answer.start_again = start_again_;
  if (!mismatch_.empty()) {
    answer.trouble = "the server answered with status " + std::to_string(answer.status) + ", but " + mismatch_;
    answer.can_repeat = start_again_;
  } else if (code != CURLE_OK && wanted_) {
    answer.trouble = stalled_    ? c10::str("the server sent no data for ", options_.stall_timeout_ms, " ms")
                     : reason[0] ? std::string(reason)
                                 : curl_easy_strerror(static_cast<CURLcode>(code));
    answer.can_repeat = stalled_ || is_passing(static_cast<CURLcode>(code));
  } else if (!has_body && answer.status != 304) {
    describe_refusal(answer);
  }
  curl_off_t retry_after = 0;
  curl_easy_getinfo(static_cast<CURL*>(curl_), CURLINFO_RETRY_AFTER, &retry_after);
  answer.retry_after_s = retry_after;
  answer.file = headers_.file;
  if (answer.status == 416 && headers_.total) answer.file.size = *headers_.total;
  return answer;
}

}  // namespace bellows::io
