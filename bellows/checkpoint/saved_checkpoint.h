#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/format.h"

namespace bellows::checkpoint {

/// An open checkpoint: a folder of several ranks or a file of one process. Tensors are read on request, and only the
/// requested elements.
/// Threads: not thread-safe
class SavedCheckpoint {
 public:
  /// Reads the index of a folder, or a complete file.
  /// Throws: c10::ValueError if the checkpoint is missing, damaged, of another format or of a newer version. All
  ///         functions below throw it if a rank's file is missing, truncated or damaged (the message has file and
  ///         position)
  explicit SavedCheckpoint(const std::string& path);
  ~SavedCheckpoint();
  SavedCheckpoint(const SavedCheckpoint&) = delete;
  SavedCheckpoint& operator=(const SavedCheckpoint&) = delete;

  const std::string& path() const { return path_; }
  const ShardedIndex& index() const { return index_; }
  /// Finds a tensor by its name with section: "model/fc.weight". Returns null if there is none.
  const SavedTensor* find(std::string_view name) const;

  /// Verifies the checksums of the data that reading a part would touch, or of the complete checkpoint.
  void verify(const SavedTensor& tensor, const comm::ShardSpec& part) const;
  void verify() const;

  /// Copies the elements of a part into `local`, without verifying checksums.
  /// Params: local – has the saved dtype and the part's number of elements; any strides and device
  /// Throws: c10::ValueError if the dtype differs or the part belongs to another tensor
  void read(const SavedTensor& tensor, const comm::ShardSpec& part, const at::Tensor& local) const;
  /// Reads a complete tensor onto the CPU, with its saved strides. Verifies its checksums.
  at::Tensor read(const SavedTensor& tensor) const;
  /// Reads and verifies the complete state, as a single process holds it, with the generators of `rank`. If fewer ranks
  /// were saved, the generators are empty.
  State state(int rank = 0) const;

 private:
  at::Tensor read_unverified(const SavedTensor& tensor) const;

  struct Files;
  std::string path_;
  ShardedIndex index_;
  std::unique_ptr<Files> files_;
};

/// Exports the model of a checkpoint to one safetensors file, row-major, with the model's names. To load it in Python,
/// use `safetensors.torch.load_file(file)`.
/// Params: path – a folder of several ranks or a file of one process
/// Cost:   memory for one tensor at a time
/// Throws: c10::ValueError like SavedCheckpoint; c10::Error if `file` cannot be written; it is unchanged then
void export_safetensors(const std::string& path, const std::string& file);

}  // namespace bellows::checkpoint
