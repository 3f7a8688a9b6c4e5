// A server with the models of test_models.h, for programs in other languages: it prints its ports for HTTP
// and gRPC, and ends when its standard
// input ends.
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "bellows/serve/server.h"
#include "tests/serve/test_models.h"

/// Returns the value after an option, or "".
static std::string value_of(int count, char** arguments, std::string_view option) {
  for (int i = 1; i + 1 < count; ++i)
    if (arguments[i] == option) return arguments[i + 1];
  return "";
}

// Options: --token-file FILE, --tls-certificate FILE, --tls-key FILE, and --hostile-names for models whose names are HTML.
int main(int count, char** arguments) {
  using namespace bellows::serve;
  const TestFolder folder;
  folder.write("identity/config.pbtxt", R"(max_batch_size: 8 dynamic_batching { }
    input { name: "x" data_type: TYPE_FP32 dims: 4 }
    output { name: "y" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" })");
  folder.write("identity/labels.txt", "cat\ndog\nbird\nfish\n");
  folder.write("identity/1/model.test", "identity");
  folder.write("sum/config.pbtxt", "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 50000 }");
  folder.write("sum/1/model.test", "sum");
  for (const char* type : {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
                           "BF16", "FP32", "FP64"})
    folder.write(std::string(type) + "/1/model.test", std::string("types ") + type);
  folder.write("texts/config.pbtxt",
               R"(max_batch_size: 8 parameters { key: "tokenizer" value: { string_value: "bytes" } })");
  folder.write("texts/1/model.test", "tokens");
  folder.write("ensemble/config.pbtxt", R"(platform: "ensemble" max_batch_size: 8
    input { name: "text" data_type: TYPE_STRING dims: 1 }
    output [ { name: "numbers" data_type: TYPE_FP32 dims: 2 }, { name: "text" data_type: TYPE_STRING dims: 1 } ]
    ensemble_scheduling { step { model_name: "texts" model_version: -1 input_map { key: "text" value: "text" }
                                 output_map { key: "y" value: "numbers" } } })");
  folder.write("accumulate/config.pbtxt", R"(max_batch_size: 8 sequence_batching {
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
    control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
    state { input_name: "sum_in" output_name: "sum_out" data_type: TYPE_FP32 dims: 1 } })");
  folder.write("accumulate/1/model.test", "accumulate");
  folder.write("damaged/1/model.test", "?");
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) != "--hostile-names") continue;
    for (const char* name : {"<img src=x onerror=alert(1)>", "\"><script>alert(1)<!--"})
      folder.write(std::string(name) + "/1/model.test", "identity");
  }
  ServerOptions options{.repository = folder.path()};
  options.http.port = 0;
  if (Server::missing_grpc().empty()) options.grpc = GrpcOptions{.port = 0};
  options.http.tls_certificate = value_of(count, arguments, "--tls-certificate");
  options.http.tls_key = value_of(count, arguments, "--tls-key");
  options.access.token_file = value_of(count, arguments, "--token-file");
  Server server(options, test_loader());
  server.wait_until_loaded();
  std::printf("%u %u\n", static_cast<unsigned>(server.port()), static_cast<unsigned>(server.grpc_port()));
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return server.drain(std::chrono::seconds(20)) ? 0 : 1;
}
