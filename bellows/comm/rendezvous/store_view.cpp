#include "bellows/comm/rendezvous/store_view.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "bellows/core/mutex.h"
#include "bellows/system/no_sigpipe.h"
#include "bellows/system/thread.h"

namespace bellows::comm {

namespace {

using namespace std::chrono_literals;
using ViewClock = std::chrono::steady_clock;

constexpr auto look_period = 50ms, open_period = 300ms;

}  // namespace

/// Shared with the background threads. Hanging threads outlive the view.
struct StoreView::State {
  struct Write {
    std::string key, value;
    bool first = false;  ///< only if the key does not exist
  };

  struct Look {
    std::optional<std::string> value;
    bool changes = false;
  };

  explicit State(std::function<Store()> opens) : open(std::move(opens)) {}

  bool turn(const Store& store, int64_t of);
  void add(Write write);
  std::optional<std::string> look(const std::string& key, bool changes);
  std::vector<std::string> due() const BELLOWS_REQUIRES(mutex);

  const std::function<Store()> open;
  Mutex mutex;
  ConditionVariable changed;
  std::vector<Write> writes BELLOWS_GUARDED_BY(mutex);
  std::map<std::string, Look> looks BELLOWS_GUARDED_BY(mutex);
  ViewClock::time_point answered BELLOWS_GUARDED_BY(mutex) = ViewClock::now();
  int64_t generation BELLOWS_GUARDED_BY(mutex) = 0;  ///< of the thread that may change this object
  std::shared_ptr<bool> runs BELLOWS_GUARDED_BY(mutex) = std::make_shared<bool>(true);  ///< whether that thread runs
  bool gone BELLOWS_GUARDED_BY(mutex) = false;
};

void StoreView::State::add(Write write) {
  const MutexLock lock(mutex);
  const auto same = std::find_if(writes.begin(), writes.end(), [&](const Write& other) {
    return other.key == write.key && !other.first && !write.first;
  });
  if (same != writes.end()) {
    *same = std::move(write);
  } else {
    writes.push_back(std::move(write));
  }
  changed.notify_all();
}

std::optional<std::string> StoreView::State::look(const std::string& key, bool changes) {
  const MutexLock lock(mutex);
  const auto [entry, is_new] = looks.try_emplace(key, Look{.value = {}, .changes = changes});
  if (is_new) changed.notify_all();
  return entry->second.value;
}

std::vector<std::string> StoreView::State::due() const {
  std::vector<std::string> keys;
  keys.reserve(looks.size());
  for (const auto& [key, look] : looks) {
    if (look.changes || !look.value) keys.push_back(key);
  }
  return keys;
}

/// Writes and looks up once. Returns false if another thread has replaced this one.
bool StoreView::State::turn(const Store& store, int64_t of) {
  UniqueLock lock(mutex);
  const std::vector<Write> to_write = writes;
  const std::vector<std::string> to_look = due();
  lock.unlock();
  for (const Write& write : to_write) {
    if (write.first) {
      store.set_first(write.key, write.value);
    } else {
      store.set(write.key, write.value);
    }
  }
  std::vector<std::optional<std::string>> found;
  found.reserve(to_look.size());
  for (const std::string& key : to_look) found.push_back(store.find(key));
  if (to_look.empty()) store.find("answer");  // a write alone does not show whether it arrived
  lock.lock();
  if (generation != of) return false;
  answered = ViewClock::now();
  std::erase_if(writes, [&](const Write& write) {
    return std::any_of(to_write.begin(), to_write.end(),
                       [&](const Write& done) { return done.key == write.key && done.value == write.value; });
  });
  for (size_t i = 0; i < to_look.size(); ++i) {
    if (found[i]) looks[to_look[i]].value = found[i];
  }
  changed.notify_all();
  return true;
}

void StoreView::start(const std::shared_ptr<State>& state) {
  start_thread("process group", [state, generation = state->generation, runs = state->runs] {
    const NoSigpipe no_signal;  // for writes to a broken connection
    run(state, generation);
    const MutexLock lock(state->mutex);
    *runs = false;
    state->changed.notify_all();
  }).detach();
}

void StoreView::run(const std::shared_ptr<State>& state, int64_t generation) {
  const auto mine = [&]() BELLOWS_REQUIRES(state->mutex) { return state->generation == generation; };
  const auto open = [&]() -> std::optional<Store> {
    try {
      return state->open();
    } catch (const std::exception&) {
      return std::nullopt;  // not reachable; try again later
    }
  };
  std::optional<Store> store;
  UniqueLock lock(state->mutex);
  while (mine()) {
    lock.unlock();
    bool broken = false;
    if (store) {
      try {
        if (!state->turn(*store, generation)) return;
      } catch (const std::exception&) {
        broken = true;
      }
    } else {
      store = open();
    }
    lock.lock();
    if (broken && mine()) state->gone = true;
    if (broken) return;
    const auto pending = [&]() BELLOWS_REQUIRES(state->mutex) { return !mine() || (store && !state->writes.empty()); };
    state->changed.wait_for(lock, store ? look_period : open_period, pending);
  }
}

StoreView::StoreView(std::function<Store()> open) : state_(std::make_shared<State>(std::move(open))) {
  start(state_);
}

StoreView::~StoreView() {
  UniqueLock lock(state_->mutex);
  ++state_->generation;
  state_->changed.notify_all();
  // Waits for the thread, because it uses the store. A hanging thread is left behind.
  state_->changed.wait_for(lock, 1s, [this]() BELLOWS_REQUIRES(state_->mutex) { return !*state_->runs; });
}

void StoreView::set(const std::string& key, const std::string& value) {
  state_->add({.key = key, .value = value});
}

void StoreView::set_first(const std::string& key, const std::string& value) {
  state_->add({.key = key, .value = value, .first = true});
}

std::optional<std::string> StoreView::value(const std::string& key) {
  return state_->look(key, false);
}

std::optional<std::string> StoreView::latest(const std::string& key) {
  return state_->look(key, true);
}

std::optional<std::string> StoreView::wait_for(const std::string& key, double timeout_s) {
  state_->look(key, false);
  UniqueLock lock(state_->mutex);
  const State::Look& look = state_->looks[key];
  state_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                           [&]() BELLOWS_REQUIRES(state_->mutex) { return look.value.has_value() || state_->gone; });
  return look.value;
}

bool StoreView::flush(double timeout_s) {
  UniqueLock lock(state_->mutex);
  return state_->changed.wait_for(
      lock, std::chrono::duration<double>(timeout_s),
      [&]() BELLOWS_REQUIRES(state_->mutex) { return state_->writes.empty() || state_->gone; });
}

double StoreView::silent_s() const {
  const MutexLock lock(state_->mutex);
  return std::chrono::duration<double>(ViewClock::now() - state_->answered).count();
}

bool StoreView::is_gone() const {
  const MutexLock lock(state_->mutex);
  return state_->gone;
}

void StoreView::renew() {
  const MutexLock lock(state_->mutex);
  ++state_->generation;
  state_->runs = std::make_shared<bool>(true);
  state_->changed.notify_all();
  start(state_);
}

}  // namespace bellows::comm
