#pragma once

// Internals of store.h that depend on c10d.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "bellows/comm/rendezvous/store.h"

namespace bellows::comm {

inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

struct Store::State {
  c10::intrusive_ptr<c10d::Store> store;
  int port = 0;
};

}  // namespace bellows::comm
