#pragma once

#include <string>
#include <vector>

#include "bellows/data/formats/file_starts.h"
#include "bellows/data/formats/read_sample.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/table_files.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// A source whose samples are the rows of text files. Derived classes find the rows and parse them.
class RowSource : public Source {
 public:
  using Source::read;

  int64_t size() const override { return rows_.size(); }
  bool stored() const override { return true; }
  std::vector<int64_t> block_starts() const override { return rows_.block_starts(); }

  bool prefetch(int64_t index) const override {
    std::shared_ptr<const void> owner;
    touch_pages(files_.content(rows_.file_of(index), owner), rows_[index], rows_.next(index));
    return true;
  }

  void read(int64_t index, Sample& sample) const override {
    const size_t file = rows_.file_of(index);
    sample.clear();
    sample.id = index;
    sample.file = files_.name(file);
    read_naming([&] { return c10::str("sample ", index); }, [&] { fill(file, rows_[index], sample); });
  }

 protected:
  /// Params: image_folder – base folder of the paths of images, as in PictureFolder
  RowSource(const std::vector<std::string>& paths, const std::string& image_folder) : files_(paths) {
    pictures_.reserve(files_.size());
    for (size_t file = 0; file < files_.size(); ++file) pictures_.emplace_back(image_folder, files_.name(file));
  }

  ShardFiles files_;
  std::vector<PictureFolder> pictures_;  ///< one per file
  SampleOffsets rows_;                   ///< filled by the derived class

 private:
  /// Adds the fields of a row to `sample`.
  /// Params: row – byte offset of the row in its file
  virtual void fill(size_t file, uint64_t row, Sample& sample) const = 0;
};

}  // namespace bellows::data
