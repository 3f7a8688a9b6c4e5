#include <cstdint>
#include <string>

#include "cli/help_texts.h"
#include "cli/option_checks.h"
#include "cli/size_option.h"
#include "cli/verb_options.h"

namespace bellows::cli {

namespace {

void add_serve_network(CLI::App* verb, ServeArguments& arguments) {
  begin_group(verb, "Network");
  verb->add_option("--address", arguments.address,
                   "Listen on this IP address. 0.0.0.0 accepts connections from other machines [default: 127.0.0.1]")
      ->type_name("ADDRESS");
  verb->add_option("--port", arguments.port, "TCP port. With 0, a free port is chosen and printed [default: 8000]")
      ->type_name("PORT")
      ->check(whole_number(0, 65535));
  verb->add_option("--http-threads", arguments.http_threads,
                   "Threads that read requests and write responses [default: 2]")
      ->type_name("N")
      ->check(whole_number(1, 256));
  CLI::Option* grpc = verb->add_option("--grpc-port", arguments.grpc_port,
                                       "TCP port for gRPC. With 0, a free port is chosen and printed [default: 8001]")
                          ->type_name("PORT")
                          ->check(whole_number(0, 65535));
  verb->add_option("--grpc-threads", arguments.grpc_threads, "Threads that read gRPC requests [default: 2]")
      ->type_name("N")
      ->check(whole_number(1, 256));
  verb->add_flag("--no-grpc", arguments.no_grpc, "Serve HTTP only")->excludes(grpc);
  verb->add_flag(
      "--shared-memory", arguments.shared_memory,
      "Clients may pass tensors in shared memory. They can then access all shared memory objects of your user "
      "[default: only if --address is a loopback address]");
  begin_group(verb, "Limits");
  verb->add_option("--max-connections", arguments.max_connections,
                   "Number of open connections. Further clients receive status 503 [default: 1024]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  add_size(verb, "--max-body", arguments.max_body,
           "Largest body or gRPC message of a request, such as 16MB [default: 256MB]");
  verb->add_option("--max-queue", arguments.max_queue,
                   "Number of requests that may wait for one model, if its configuration states no limit. Further "
                   "requests receive status 503 [default: 1024]")
      ->type_name("N")
      ->check(whole_number(1, 1 << 20));
  verb->add_option("--drain-seconds", arguments.drain_seconds,
                   "After a signal, wait at most this many seconds for the requests that were received [default: 30]")
      ->type_name("SECONDS")
      ->check(whole_number(0, 86400));
}

void add_serve_security(CLI::App* verb, ServeArguments& arguments) {
  begin_group(verb, "Security");
  verb->add_option(
          "--tls-certificate", arguments.tls_certificate,
          "PEM file with the certificate of the server, followed by intermediate ones. Clients then use https. "
          "The file is read again when it changes")
      ->type_name("FILE");
  verb->add_option("--tls-key", arguments.tls_key, "PEM file with the private key of the certificate")
      ->type_name("FILE");
  verb->add_option("--token-file", arguments.token_file,
                   "File with one token per line, as TOKEN or NAME:TOKEN. Each request must have the header "
                   "\"Authorization: Bearer TOKEN\". The file is read again when it changes")
      ->type_name("FILE");
  verb->add_flag("--open-health", arguments.open_health,
                 "/v2/health/live and /v2/health/ready need no token, such as for the probes of Kubernetes");
  verb->add_flag("--open-metrics", arguments.open_metrics, "/metrics needs no token");
  verb->add_flag(
      "--no-authentication", arguments.no_authentication,
      "Accept clients on other machines without tokens. Without this option, the server refuses to listen on "
      "such an address if there is no --token-file");
}

void add_serve_logs(CLI::App* verb, ServeArguments& arguments) {
  begin_group(verb, "Logs");
  verb->add_flag("--access-log", arguments.access_log,
                 "Log one line for each request, with the client, the status, the size of the answer, and times");
  verb->add_option("--trace-file", arguments.trace_file,
                   "Add the times of inference requests to this file, with one JSON object per line")
      ->type_name("FILE");
  verb->add_option("--trace-rate", arguments.trace_rate,
                   "Trace at most this many requests per second. With 0, all requests are traced [default: 10]")
      ->type_name("N")
      ->check(whole_number(0, 1 << 30));
}

}  // namespace

CLI::App* add_serve(CLI::App& app, ServeArguments& arguments) {
  CLI::App* verb = app.add_subcommand("serve", "Serve models over HTTP and gRPC with the Open Inference Protocol")
                       ->footer(serve_footer);
  begin_group(verb, "Models");
  verb->add_option("--model-repository", arguments.repository,
                   "Folder with MODEL/VERSION/model.* and MODEL/config.pbtxt")
      ->type_name("DIR")
      ->required();
  verb->add_option("--load-model", arguments.models,
                   "Load only this model at the start. You can repeat this option [default: all models]")
      ->type_name("NAME")
      ->expected(1, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_option("--poll-seconds", arguments.poll_seconds,
                   "Search for new, changed and deleted models at this interval [default: never]")
      ->type_name("SECONDS")
      ->check(whole_number(1, 86400));
  verb->add_flag("--no-model-control", arguments.no_model_control, "Clients may not load or unload models");
  verb->add_option("--threads", arguments.threads, "Threads of one call of a model [default: one per core]")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  add_serve_network(verb, arguments);
  add_serve_security(verb, arguments);
  add_serve_logs(verb, arguments);
  return verb;
}

}  // namespace bellows::cli
