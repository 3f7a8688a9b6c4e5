#pragma once

// Behind store.h: for sources that see c10d.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bellows/comm/store.h"

namespace bellows::comm {

struct Store::State {
  c10::intrusive_ptr<c10d::Store> store;
  int port = 0;
};

}  // namespace bellows::comm
