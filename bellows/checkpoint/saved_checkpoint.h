#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/format.h"

namespace bellows::checkpoint {

/// An open checkpoint: a folder that several ranks wrote, or a file that one process wrote. From a folder, only the
/// requested elements are read. A file is loaded completely by the constructor.
/// Threads: not thread-safe
class SavedCheckpoint {
 public:
  /// Reads the index of a folder, or a complete file.
  /// Throws: c10::ValueError if the checkpoint is missing or damaged, or has a different format or a newer version. All
  ///         functions below throw c10::ValueError if the file of a rank is missing, truncated or damaged. The message
  ///         states the file and the position
  explicit SavedCheckpoint(const std::string& path);
  ~SavedCheckpoint();
  SavedCheckpoint(const SavedCheckpoint&) = delete;
  SavedCheckpoint& operator=(const SavedCheckpoint&) = delete;

  const std::string& path() const { return path_; }
  const ShardedIndex& index() const { return index_; }
  /// Finds a tensor by its full name, including the section, such as "model/fc.weight". Returns null if there is no
  /// such tensor.
  const SavedTensor* find(std::string_view name) const;

  /// Verifies the checksums of the data that read() needs for a part. Without arguments, verifies the complete
  /// checkpoint.
  void verify(const SavedTensor& tensor, const comm::ShardSpec& part) const;
  void verify() const;

  /// Copies the elements of a part into `local`, without verifying checksums.
  /// Params: local – a tensor with the saved dtype and the part's number of elements. Strides and device are arbitrary
  /// Throws: c10::ValueError if the dtype differs or the part belongs to a different tensor
  void read(const SavedTensor& tensor, const comm::ShardSpec& part, const at::Tensor& local) const;
  /// Reads a complete tensor onto the CPU, with its saved strides, and verifies its checksums.
  at::Tensor read(const SavedTensor& tensor) const;
  /// Reads and verifies the complete state, as a single process would have it. The generator states are those of rank
  /// `rank`. If the checkpoint has no rank `rank`, there are no generator states.
  State state(int rank = 0) const;

 private:
  at::Tensor read_unverified(const SavedTensor& tensor) const;

  struct Files;
  std::string path_;
  ShardedIndex index_;
  std::unique_ptr<Files> files_;
};

/// Exports the model of a checkpoint to one safetensors file. Tensors are row-major and keep the model's parameter
/// names, without the prefix `model/`. To load the file in Python, use `safetensors.torch.load_file(file)`.
/// Params:  path – a folder that several ranks wrote, or a file that one process wrote
///          max_file_bytes – if the tensors need more bytes, they are divided among numbered files, such as
///                           model-00001-of-00002.safetensors, and `file`.index.json lists them, as in Hugging Face's
///                           repositories. 0: one file
/// Returns: the paths of the files
/// Cost:    memory for one tensor at a time; for a file that one process wrote, memory for the complete checkpoint
/// Throws:  c10::ValueError like SavedCheckpoint. c10::Error if a file cannot be written; an existing file is then
///          unchanged
std::vector<std::string> export_safetensors(const std::string& path, const std::string& file,
                                            uint64_t max_file_bytes = 0);

}  // namespace bellows::checkpoint
