#include "bench/loader/photographs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/flip.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <filesystem>

#include "bellows/core/seed.h"
#include "bellows/data/formats/beton_source.h"
#include "bellows/data/formats/pack_source.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/images/image.h"
#include "bellows/system/file.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

namespace fs = std::filesystem;

/// scikit-learn's folder of photographs, in the environment that script/bench makes.
fs::path photographs_folder() {
  const fs::path packages = fs::path(source_dir()) / ".deps/peers/lib";
  std::error_code missing;
  for (const auto& python : fs::directory_iterator(packages, missing)) {
    const fs::path folder = python.path() / "site-packages/sklearn/datasets/images";
    if (fs::exists(folder / "china.jpg")) return folder;
  }
  TORCH_CHECK_VALUE(false, "loader: expected the photographs of scikit-learn in ", packages.string(),
                    ". Run script/bench loader, which installs scikit-learn.");
}

std::string number(size_t i) {
  std::string text = std::to_string(i);
  return std::string(4 - std::min<size_t>(text.size(), 4), '0') + text;
}

template <class Write>
void for_each_sample(const Photographs& photographs, const Write& write) {
  data::Sample sample;
  for (size_t i = 0; i < photographs.jpegs.size(); ++i) {
    const std::string label = std::to_string(Photographs::label(i)), key = number(i);
    sample.clear();
    sample.id = static_cast<int64_t>(i);
    sample.key = key;
    sample.fields.resize(2);
    sample.fields[0].name = "jpg";
    sample.fields[0].bytes = io::as_bytes(photographs.jpegs[i]);
    sample.fields[1].name = "cls";
    sample.fields[1].bytes = io::as_bytes(label);
    write(sample);
  }
}

void write_to(data::Sink& sink, const Photographs& photographs) {
  for_each_sample(photographs, [&](const data::Sample& sample) { sink.write(sample); });
  sink.close();
}

void write_files(const Photographs& photographs, const fs::path& folder) {
  std::deque<io::TarWriter> shards;
  for (int i = 0; i < 4; ++i) shards.emplace_back((folder / ("photos-" + std::to_string(i) + ".tar")).string());
  for_each_sample(photographs, [&](const data::Sample& sample) {
    const std::string key(sample.key), label(io::as_text(sample.fields[1].bytes));
    fs::create_directories(folder / "jpg" / label);
    write_text_file(folder / "jpg" / label / (key + ".jpg"), io::as_text(sample.fields[0].bytes));
    // In order: each shard holds a quarter.
    io::TarWriter& shard = shards[static_cast<size_t>(sample.id) * 4 / photographs.jpegs.size()];
    shard.add(key + ".cls", label);
    shard.add(key + ".jpg", sample.fields[0].bytes);
  });
  for (io::TarWriter& shard : shards) shard.close();
}

}  // namespace

Photographs make_photographs(int64_t count) {
  const fs::path folder = photographs_folder();
  std::vector<at::Tensor> originals;
  for (const char* name : {"china.jpg", "flower.jpg"}) {
    const MappedFile file((folder / name).string());
    originals.push_back(io::decode_image(file.bytes(), io::ColorMode::rgb, file.path()));
  }
  Photographs photographs;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& original = originals[static_cast<size_t>(i % 2)];
    RandomStream random(mix_seed(375, static_cast<uint64_t>(i)));
    const auto below = [&](int64_t room) {
      return static_cast<int64_t>(random.below(static_cast<uint64_t>(room) + 1));
    };
    const int64_t y = below(original.size(0) - Photographs::height), x = below(original.size(1) - Photographs::width);
    at::Tensor part = original.narrow(0, y, Photographs::height).narrow(1, x, Photographs::width);
    if (i / 2 % 2 == 1) part = at::flip(part, {1});
    const io::Bytes jpeg = io::encode_jpeg(part, 90);
    photographs.jpegs.emplace_back(io::as_text(jpeg));
  }
  return photographs;
}

void write_photographs(const Photographs& photographs, const std::string& folder) {
  const fs::path path(folder);
  write_files(photographs, path);
  write_to(*data::beton_sink(path / "photos.beton"), photographs);
  write_to(*data::beton_sink(path / "raw.beton", {.images = data::BetonImages::raw}), photographs);
  write_to(*data::pack_sink(path / "photos.pack"), photographs);
  Photographs restarts = photographs;
  for (std::string& jpeg : restarts.jpegs) jpeg = io::as_text(io::jpeg_with_restarts(io::as_bytes(jpeg)));
  write_to(*data::pack_sink(path / "restart.pack"), restarts);
}

}  // namespace bellows::bench
