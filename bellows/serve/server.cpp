#include "bellows/serve/server.h"

#include <atomic>
#include <exception>
#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/serve/access/access_tokens.h"
#include "bellows/serve/grpc/grpc_server.h"
#include "bellows/serve/idle_memory.h"
#include "bellows/serve/repository.h"
#include "bellows/serve/service.h"
#include "bellows/serve/trace/request_tracer.h"
#include "bellows/system/thread.h"

namespace bellows::serve {

namespace {

/// Runs functions one after another on one thread, and another function at regular intervals.
class ControlThread {
 public:
  ControlThread(std::chrono::milliseconds interval, std::function<void()> regular)
      : interval_(interval), regular_(std::move(regular)), thread_(start_thread("model control", [this] { run(); })) {}
  ~ControlThread() { stop(); }

  void add(std::function<void()> task) {
    {
      const MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  /// Runs the tasks that were added, and ends the thread.
  void stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    auto next = Clock::now() + interval_;
    UniqueLock lock(mutex_);
    while (true) {
      if (!tasks_.empty()) {
        const std::function<void()> task = std::move(tasks_.front());
        tasks_.pop_front();
        const MutexUnlock unlocked(mutex_);
        call(task);
      } else if (stopping_) {
        return;
      } else if (Clock::now() >= next) {
        const MutexUnlock unlocked(mutex_);
        call(regular_);
        next = Clock::now() + interval_;
      } else {
        changed_.wait_for(lock, next - Clock::now());
      }
    }
  }
  static void call(const std::function<void()>& task) {
    try {
      task();
    } catch (const std::exception& error) {
      log_error(user_message(error));
    }
  }

  const std::chrono::milliseconds interval_;
  const std::function<void()> regular_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::list<std::function<void()>> tasks_ BELLOWS_GUARDED_BY(mutex_){};
  bool stopping_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last member: it uses the others
};

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, ModelLoader loader)
      : options_(checked(std::move(options))),
        tokens_(options_.access.token_file.empty() ? nullptr : std::make_shared<TokenFile>(options_.access.token_file)),
        tracer_(options_.trace.file.empty()
                    ? nullptr
                    : std::make_shared<RequestTracer>(options_.trace.file, options_.trace.per_second)),
        repository_(options_.repository, loader ? std::move(loader) : runtime_loader(), options_.load),
        service_(repository_, service_options()),
        control_(tick, [this] { on_tick(); }),
        http_(options_.http, service_) {
    if (options_.grpc) grpc_ = std::make_unique<GrpcServer>(*options_.grpc, service_);
    control_.add([this] {
      repository_.load_all(options_.models);
      {
        const MutexLock lock(mutex_);
        loaded_ = true;
        service_.set_ready(!draining_);
      }
      changed_.notify_all();
    });
    http_.start();
    started_ = true;
  }
  ~Impl() { drain(std::chrono::milliseconds(0)); }

  uint16_t port() const { return http_.port(); }
  uint16_t grpc_port() const { return grpc_ ? grpc_->port() : 0; }
  void reload_files() {
    control_.add([this] { read_files(); });
  }

  void wait_until_loaded() {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [this]() BELLOWS_REQUIRES(mutex_) { return loaded_; });
  }

  bool drain(std::chrono::milliseconds timeout) {
    {
      const MutexLock lock(mutex_);
      if (std::exchange(draining_, true)) return true;
      service_.set_ready(false);
    }
    auto grpc_in_time = start_async_or_run([this, timeout] { return !grpc_ || grpc_->drain(timeout); });
    const bool http_in_time = http_.drain(timeout), in_time = grpc_in_time.get() && http_in_time;
    // From here on, no request arrives. The answers to cut connections are discarded.
    control_.stop();
    repository_.drain();
    if (tracer_) tracer_->flush();
    return in_time;
  }

 private:
  static constexpr std::chrono::milliseconds tick{1000};

  static ServerOptions checked(ServerOptions options) {
    const AccessOptions& access = options.access;
    check_exposure(options.http.address, !access.token_file.empty(), access.no_authentication);
    if (!options.grpc) return options;
    check_exposure(options.grpc->address, !access.token_file.empty(), access.no_authentication);
    options.grpc->tls_certificate = options.http.tls_certificate;
    options.grpc->tls_key = options.http.tls_key;
    return options;
  }

  ServiceOptions service_options() {
    const bool local =
        !is_reachable(options_.http.address) && (!options_.grpc || !is_reachable(options_.grpc->address));
    return {.model_control = options_.model_control,
            .shared_memory = options_.shared_memory.value_or(local),
            .max_shared_memory = options_.http.max_body_bytes,
            .run_control = [this](std::function<void()> task) { control_.add(std::move(task)); },
            .server_values = [this] { return ServerValues{.connections = http_.connections()}; },
            .tokens = tokens_,
            .open_health = options_.access.open_health,
            .open_metrics = options_.access.open_metrics,
            .tracer = tracer_};
  }

  void read_files() {
    if (!started_) return;
    if (tokens_) tokens_->reload();
    http_.reload_files();
  }

  void on_tick() {
    idle_memory_.check(service_.requests());
    read_files();
    if (tracer_) tracer_->flush();
    if (options_.poll_interval.count() == 0 || Clock::now() < next_poll_) return;
    repository_.poll();
    next_poll_ = Clock::now() + options_.poll_interval;
  }

  const ServerOptions options_;
  const std::shared_ptr<TokenFile> tokens_;
  const std::shared_ptr<RequestTracer> tracer_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool loaded_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool draining_ BELLOWS_GUARDED_BY(mutex_) = false;
  IdleMemory idle_memory_{};
  Clock::time_point next_poll_{};
  std::atomic<bool> started_{false};  ///< whether all members exist
  Repository repository_;
  Service service_;
  ControlThread control_;
  HttpServer http_;
  std::unique_ptr<GrpcServer> grpc_{};
};

Server::Server(ServerOptions options, ModelLoader loader)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(loader))) {}
Server::~Server() = default;

std::string Server::missing() {
  return "";
}
std::string Server::missing_grpc() {
  return GrpcServer::missing();
}
uint16_t Server::port() const {
  return impl_->port();
}
uint16_t Server::grpc_port() const {
  return impl_->grpc_port();
}
void Server::wait_until_loaded() {
  impl_->wait_until_loaded();
}
void Server::reload_files() {
  impl_->reload_files();
}
bool Server::drain(std::chrono::milliseconds timeout) {
  return impl_->drain(timeout);
}

}  // namespace bellows::serve
