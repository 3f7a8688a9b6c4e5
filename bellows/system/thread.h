#pragma once

#include <future>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace bellows {

/// Returns a message that states why the system cannot start a thread and what to do.
std::string no_thread_message(const std::system_error& error);
/// Throws: c10::Error in all cases, with the message "PURPOSE: cannot start a thread: …"
[[noreturn]] void throw_no_thread(std::string_view purpose, const std::system_error& error);

/// Starts `count` threads that do nothing and ends them. If OpenMP cannot start a thread, it ends the process, and the
/// program cannot catch this error. Call check_threads() first to get an exception instead.
/// Cost:   about 20 µs per thread
/// Throws: c10::Error if the system cannot start that many threads
void check_threads(int count);

/// Starts a thread. Call this function before you add work to the thread's queue. If you add work first, remove it
/// again if this function throws.
/// Params: purpose – prefix of the error message, such as "checkpoint"
///         Thread  – std::thread or std::jthread
/// Throws: c10::Error if the system cannot start a thread, because a limit of threads or memory is reached
template <class Thread = std::thread, class Function>
Thread start_thread(std::string_view purpose, Function&& function) {
  try {
    return Thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw_no_thread(purpose, error);
  }
}

/// Runs a function on a new thread, like std::async(). If the system cannot start a thread, the function runs on the
/// calling thread before start_async_or_run() returns. In both cases, get() rethrows the exceptions of the function.
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
