#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "bellows/core/mutex.h"
#include "bellows/serve/http_message.h"
#include "bellows/serve/trace/trace_context.h"

namespace bellows::serve {

class RequestTracer;

/// The headers of a request that concern its trace, and its sender and time.
struct TraceStart {
  std::string_view traceparent{}, request_id{};  ///< the headers traceparent and X-Request-Id, or ""
  std::string client{};                          ///< name of the client's token
  Clock::time_point received{};
};

/// The times of one inference request. The destructor writes a line to the trace file.
/// Threads: not thread-safe; the request passes the object from thread to thread
class RequestTrace {
 public:
  explicit RequestTrace(std::shared_ptr<RequestTracer> tracer) : tracer_(std::move(tracer)) {}
  ~RequestTrace();
  RequestTrace(const RequestTrace&) = delete;
  RequestTrace& operator=(const RequestTrace&) = delete;

  const char* protocol = "http";  ///< or "grpc"
  TraceContext context{};
  std::string request_id{};  ///< of the header X-Request-Id, or the field `id` of the request
  std::string client{};      ///< name of the client's token
  std::string model{}, version{};
  std::string error{};
  int64_t rows = 0;  ///< batch size of the request
  RequestTimes times{};
  Clock::time_point parsed{};  ///< when the request had been parsed
  SentResponse response{};     ///< the status is that of the protocol

 private:
  std::shared_ptr<RequestTracer> tracer_;
};

/// Writes the times of requests to a file with one JSON object per line.
/// Threads: thread-safe
class RequestTracer : public std::enable_shared_from_this<RequestTracer> {
 public:
  /// Appends to the file if it exists.
  /// Params: per_second – at most this many requests are traced in each second; 0: all
  /// Throws: c10::ValueError if the file cannot be opened
  RequestTracer(const std::string& file, uint64_t per_second);
  ~RequestTracer();
  RequestTracer(const RequestTracer&) = delete;
  RequestTracer& operator=(const RequestTracer&) = delete;

  /// Returns an empty pointer if this second has enough traces.
  /// Params: now – the time, as a parameter for tests
  std::shared_ptr<RequestTrace> start(const TraceStart& request, Clock::time_point now = Clock::now());
  void write(const RequestTrace& trace);
  /// Writes the buffered lines to the file. A failure, such as a full disk, is logged once.
  void flush();

 private:
  bool sample(Clock::time_point now);

  const std::string file_name_;
  const uint64_t per_second_;
  Mutex mutex_;
  std::FILE* file_ BELLOWS_GUARDED_BY(mutex_) = nullptr;
  int error_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< `errno` of the last write that failed
  bool failed_ BELLOWS_GUARDED_BY(mutex_) = false;
  Clock::time_point second_ BELLOWS_GUARDED_BY(mutex_){};  ///< start of the current second
  uint64_t started_ BELLOWS_GUARDED_BY(mutex_) = 0;        ///< traces in the current second
};

}  // namespace bellows::serve
