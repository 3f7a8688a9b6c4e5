#pragma once

#include <future>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace bellows {

/// Why the system gives no thread, and what to do: a full sentence for a message.
std::string no_thread_message(const std::system_error& error);
/// Throws: c10::Error – always: "PURPOSE: cannot start a thread: …"
[[noreturn]] void throw_no_thread(std::string_view purpose, const std::system_error& error);

/// Starts `count` threads that do nothing and ends them. OpenMP ends the process without an error that can be caught where
/// it gets no thread: a program that calls this first can say why.
/// Cost:   about 20 µs a thread
/// Throws: c10::Error – the system does not give as many
void check_threads(int count);

/// Starts a thread. Put work into its queue afterwards, or take the work back if this throws.
/// Params: purpose – what the thread is for, as the start of a message: "checkpoint"
///         Thread  – std::thread or std::jthread
/// Throws: c10::Error if the system gives none (limits of threads or memory)
template <class Thread = std::thread, class Function>
Thread start_thread(std::string_view purpose, Function&& function) {
  try {
    return Thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw_no_thread(purpose, error);
  }
}

/// std::async() with a thread of its own where the system gives one; else the function runs before this returns. What it throws comes out of get() in both cases.
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
