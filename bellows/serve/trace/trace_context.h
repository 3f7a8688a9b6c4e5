#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bellows::serve {

/// The position of a request in a distributed trace.
struct TraceContext {
  std::string trace_id{};   ///< 32 hexadecimal digits
  std::string parent_id{};  ///< 16 hexadecimal digits: the span of the client. "" if the trace starts here
  std::string span_id{};    ///< 16 hexadecimal digits: the span of this request
  bool sampled = false;     ///< whether the client records the trace
};

/// Reads a header `traceparent`.
/// Returns: nothing if the header is invalid. `span_id` is empty
/// Ref: https://www.w3.org/TR/trace-context/
std::optional<TraceContext> parse_traceparent(std::string_view header);

/// Returns the trace of the header with a new span, or a new trace if the header is empty or invalid.
TraceContext next_span(std::string_view traceparent);

}  // namespace bellows::serve
