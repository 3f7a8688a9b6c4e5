// The digits as a dataset of torch's: what a user of libtorch writes for data of one's own. Nothing of Bellows.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <png.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <stdexcept>

class Digits : public torch::data::Dataset<Digits> {
 public:
  // Reads all shards of a split: tar files with KEY.png and KEY.cls.
  Digits(const std::string& folder, const std::string& split) {
    std::map<std::string, Files> found;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::string name = file.path().filename().string();
      if (name.rfind(split + "-", 0) == 0 && file.path().extension() == ".tar") read_shard(file.path().string(), found);
    }
    for (auto& [key, files] : found) samples_.push_back(std::move(files));
    if (samples_.empty()) throw std::runtime_error("no samples in " + folder + "/" + split + "-*.tar");
  }

  torch::data::Example<> get(size_t index) override {
    const Files& files = samples_[index];
    return {decode(files.png).to(torch::kFloat32).div_(255), torch::tensor(std::stol(files.label))};
  }
  std::optional<size_t> size() const override { return samples_.size(); }

 private:
  struct Files {
    std::string png, label;
  };

  static void read_shard(const std::string& path, std::map<std::string, Files>& found) {
    archive* tar = archive_read_new();
    archive_read_support_format_tar(tar);
    if (archive_read_open_filename(tar, path.c_str(), 1 << 16) != ARCHIVE_OK) {
      archive_read_free(tar);
      throw std::runtime_error("cannot read " + path);
    }
    archive_entry* entry = nullptr;
    while (archive_read_next_header(tar, &entry) == ARCHIVE_OK) {
      const std::filesystem::path name = archive_entry_pathname(entry);
      std::string bytes(static_cast<size_t>(archive_entry_size(entry)), '\0');
      archive_read_data(tar, bytes.data(), bytes.size());
      (name.extension() == ".png" ? found[name.stem()].png : found[name.stem()].label) = bytes;
    }
    archive_read_free(tar);
  }

  static torch::Tensor decode(const std::string& bytes) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) throw std::runtime_error(image.message);
    image.format = PNG_FORMAT_GRAY;
    auto pixels = torch::empty({1, image.height, image.width}, torch::kUInt8);
    if (!png_image_finish_read(&image, nullptr, pixels.data_ptr(), 0, nullptr)) throw std::runtime_error(image.message);
    return pixels;
  }

  std::vector<Files> samples_;
};
