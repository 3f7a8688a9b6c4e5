#pragma once

#include "bellows/serve/grpc/call_context_impl.h"

namespace bellows::serve {

/// Waits for the next call of ModelInfer. When it arrives, the function is called again, so that another call can arrive.
void accept_infer_call(CallContext& context);

/// The same for ModelStreamInfer: a stream of requests, with one response for each of them, in the order of the requests.
void accept_stream_call(CallContext& context);

/// The same for all other methods. They are answered by the URLs of the HTTP service, so that both protocols give the same
/// answers.
void accept_control_calls(CallContext& context);

/// Reads a message of bytes.
/// Throws: RequestError with status 400 if it is malformed
std::shared_ptr<const class InferMessage> parse_infer_message(grpc::ByteBuffer& bytes);

/// Starts the trace of a request.
/// Params:  client – from check_client()
/// Returns: an empty pointer if the request is not traced
std::shared_ptr<RequestTrace> start_trace(const CallContext& context, const grpc::ServerContext& server,
                                          const std::string& client, const inference::ModelInferRequest& request,
                                          Clock::time_point received);

/// Logs a request, if the options say so.
/// Params: client – from check_client()
void log_request(const CallContext& context, const grpc::ServerContext& server, const std::string& client,
                 const char* method, const std::string& model, const grpc::Status& status, Clock::time_point received);

}  // namespace bellows::serve
