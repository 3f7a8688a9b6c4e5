#pragma once

#include <future>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace bellows {

/// Explains why the system cannot start a thread and what to do, as a full sentence.
std::string no_thread_message(const std::system_error& error);
/// Throws: c10::Error always, "PURPOSE: cannot start a thread: …"
[[noreturn]] void throw_no_thread(std::string_view purpose, const std::system_error& error);

/// Starts `count` threads that do nothing and ends them. If OpenMP cannot start a thread, it ends the process without a
/// catchable error; call this function first to report the error instead.
/// Cost:   about 20 µs per thread
/// Throws: c10::Error if the system cannot start that many threads
void check_threads(int count);

/// Starts a thread. Add work to its queue afterwards, or remove the work again if this function throws.
/// Params: purpose – prefix of the error message: "checkpoint"
///         Thread  – std::thread or std::jthread
/// Throws: c10::Error if the system cannot start a thread (limits of threads or memory)
template <class Thread = std::thread, class Function>
Thread start_thread(std::string_view purpose, Function&& function) {
  try {
    return Thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw_no_thread(purpose, error);
  }
}

/// Like std::async() on a new thread. If the system cannot start a thread, the function runs before this call returns.
/// In both cases, get() rethrows its exceptions.
template <class Function>
auto start_async_or_run(const Function& function) {
  try {
    return std::async(std::launch::async, function);
  } catch (const std::system_error&) {
    auto result = std::async(std::launch::deferred, function);
    result.wait();
    return result;
  }
}

}  // namespace bellows
