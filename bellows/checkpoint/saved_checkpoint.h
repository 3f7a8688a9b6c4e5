#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/sharded_index.h"

namespace bellows::checkpoint {

/// A checkpoint, opened: a folder of many ranks or a file of one. Tensors are read when they are asked for, and only the
/// elements that are.
/// Threads: one at a time
class SavedCheckpoint {
 public:
  /// Reads the index of a folder, or the whole of a file.
  /// Throws: c10::ValueError – missing, damaged, another format, a newer version; so do all functions below, where a
  ///         file of a rank is missing, cut off or has flipped bits: which file, where
  explicit SavedCheckpoint(const std::string& path);
  ~SavedCheckpoint();
  SavedCheckpoint(const SavedCheckpoint&) = delete;
  SavedCheckpoint& operator=(const SavedCheckpoint&) = delete;

  const std::string& path() const { return path_; }
  const ShardedIndex& index() const { return index_; }
  /// By its name with the section: "model/fc.weight". Null where there is none.
  const SavedTensor* find(std::string_view name) const;

  /// Compares the checksums of what reading a part would touch, or of every byte that belongs to the checkpoint.
  void verify(const SavedTensor& tensor, const comm::ShardSpec& part) const;
  void verify() const;

  /// Fills `local` with the elements of a part, in place; checksums are not compared.
  /// Params: local – of the saved dtype and the part's number of elements, any strides and device
  /// Throws: c10::ValueError – another dtype, a part of another tensor
  void read(const SavedTensor& tensor, const comm::ShardSpec& part, const at::Tensor& local) const;
  /// The whole tensor on the CPU, with the strides that it had; checksums are compared.
  at::Tensor read(const SavedTensor& tensor) const;
  /// All of it, as one process holds it, with the generators of a rank; none where fewer ranks have saved. Every byte is
  /// verified.
  State state(int rank = 0) const;

 private:
  at::Tensor read_unverified(const SavedTensor& tensor) const;

  struct Files;
  std::string path_;
  ShardedIndex index_;
  std::unique_ptr<Files> files_;
};

/// Writes the model of a checkpoint as one safetensors file, row-major, under the model's names; Python:
/// `safetensors.torch.load_file(file)`.
/// Params: path – a folder of many ranks or a file of one
/// Cost:   memory for one tensor at a time
/// Throws: c10::ValueError – as SavedCheckpoint; c10::Error – `file` cannot be written; then it is as it was
void export_safetensors(const std::string& path, const std::string& file);

}  // namespace bellows::checkpoint
