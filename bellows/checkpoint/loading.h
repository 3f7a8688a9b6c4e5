#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/checkpoint/agree.h"
#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/checkpoint/sharded.h"

namespace bellows::checkpoint {

/// The steps of load_sharded(). All steps are collective and must be called in this order. If open() or verify()
/// returns an error, the checkpoint is damaged, and the caller can try an older checkpoint. If match() throws, the
/// state does not fit the checkpoint.
class Loading {
 public:
  Loading(std::string path, ShardedState& state, const comm::Group& group, const Prepare& prepare)
      : path_(std::move(path)), state_(state), group_(group), prepare_(prepare) {}

  Outcomes open();
  void match();
  Outcomes verify();
  void copy();

 private:
  std::string compare();

  std::string path_;
  ShardedState& state_;
  const comm::Group& group_;
  const Prepare& prepare_;
  std::unique_ptr<SavedCheckpoint> saved_;
  std::vector<std::pair<const SavedTensor*, Part>> wanted_;
};

}  // namespace bellows::checkpoint
