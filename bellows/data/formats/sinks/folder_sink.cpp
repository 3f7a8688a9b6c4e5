#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <optional>
#include <set>
#include <sstream>

#include "bellows/core/error.h"
#include "bellows/data/formats/folder_source.h"
#include "bellows/data/formats/new_folder.h"
#include "bellows/data/label.h"
#include "bellows/data/picture.h"
#include "bellows/io/bytes.h"
#include "bellows/io/images/image.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

namespace {

std::string zero_padded(int64_t number, int digits) {
  std::ostringstream text;
  text << std::setw(digits) << std::setfill('0') << number;
  return text.str();
}

std::string picture_suffix(const Field& field, const Sample& sample) {
  if (field.is_array) return "png";
  if (field.name != "image") return std::string(field.name);
  const std::string_view content = io::as_text(field.bytes);
  TORCH_CHECK_VALUE(content.starts_with("\xff\xd8\xff") || content.starts_with("\x89PNG"),
                    "image_folder_sink: ", sample.where(&field), ": expected a JPEG or PNG file, found ",
                    io::describe_content(field.bytes), ".");
  return content.starts_with("\xff") ? "jpg" : "png";
}

io::Bytes decoded_to_png(const Field& field, const Sample& sample) {
  try {
    auto* pixels = const_cast<std::byte*>(field.bytes.data());  // from_blob takes no const memory, but only reads it
    return io::encode_png(at::from_blob(pixels, field.sizes, at::TensorOptions().dtype(c10::kByte)));
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "image_folder_sink: ", sample.where(&field), ": ", user_message(error));
  }
}

/// The label, if it is an integer and the field's only content: the rest of a json object would be lost.
int64_t folder_label(const Field& field, const Sample& sample) {
  const std::string what = "image_folder_sink: " + sample.where(&field) + ": ";
  if (field.is_array) {
    TORCH_CHECK_VALUE(field.dtype == c10::kLong && field.sizes.empty(), what, "expected an int64 label, found ",
                      c10::toString(field.dtype), " ", field.sizes, ".");
    int64_t label = 0;
    std::memcpy(&label, field.bytes.data(), sizeof(label));
    return label;
  }
  const bool object = field.name == "json" && io::as_text(field.bytes).find('{') != std::string_view::npos;
  TORCH_CHECK_VALUE(!object, what,
                    "an image folder cannot store a JSON object. Choose another format, or use a number as the label.");
  try {
    return parse_label(field, "");
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, what, user_message(error));
  }
}

/// The sample's path, with "CLASS/" in front if it has a label: its key, which may already contain the class folder, or
/// its id.
std::string picture_path(const Sample& sample, const std::vector<std::string>& classes) {
  const Field* picture = find_picture(sample);
  TORCH_CHECK_VALUE(picture, "image_folder_sink: ", sample.where(), " has no image (jpg, jpeg, png or image).");
  std::string folder;
  if (const Field* field = find_label(sample)) {
    const int64_t label = folder_label(*field, sample);
    const auto count = classes.empty() ? int64_t{100'000} : static_cast<int64_t>(classes.size());
    TORCH_CHECK_VALUE(label >= 0 && label < count, "image_folder_sink: ", sample.where(), ": expected a label in [0, ",
                      count, "), found ", label, ".");
    folder = (classes.empty() ? zero_padded(label, 5) : classes[static_cast<size_t>(label)]) + "/";
  }
  std::string key(sample.key);
  while (key.starts_with("./")) key.erase(0, 2);
  if (key.empty()) key = zero_padded(sample.id, 8);
  TORCH_CHECK_VALUE(stays_inside(key), "image_folder_sink: the key ", io::printable(key),
                    " is not a valid path inside the folder.");
  return (key.starts_with(folder) ? key : folder + key) + "." + picture_suffix(*picture, sample);
}

class ImageFolderSink final : public Sink {
 public:
  ImageFolderSink(const std::string& folder, const ImageFolderSinkOptions& options)
      : folder_(folder, "image_folder_sink"), classes_(options.classes) {
    for (const std::string& name : classes_) {
      TORCH_CHECK_VALUE(stays_inside(name) && name.find('/') == std::string::npos,
                        "image_folder_sink: this is not a valid name of a folder: ", io::printable(name), ".");
    }
    TORCH_CHECK_VALUE(std::is_sorted(classes_.begin(), classes_.end()),
                      "image_folder_sink: the classes must be sorted, because labels are read back in the order of the "
                      "folder names.");
  }

  void write(const Sample& sample) override {
    const std::string name = picture_path(sample, classes_);
    const Field* picture = find_picture(sample);
    const Field* label = find_label(sample);
    for (const Field& field : sample.fields) {
      TORCH_CHECK_VALUE(&field == picture || &field == label, "image_folder_sink: ", sample.where(&field),
                        ": an image folder cannot store the field \"", field.name,
                        "\". Choose another format, or leave the field out.");
    }
    TORCH_CHECK_VALUE(
        labelled_.value_or(label != nullptr) == (label != nullptr), "image_folder_sink: ", sample.where(),
        label ? " has a label, but other samples have none." : " has no label, but other samples have one.");
    labelled_ = label != nullptr;
    if (label) labels_.insert(folder_label(*label, sample));
    if (picture->is_array) {
      write_file(name, decoded_to_png(*picture, sample), sample);
    } else {
      write_file(name, picture->bytes, sample);
    }
  }

  void close() override {
    state_.run("image_folder_sink", [&] {
      check_labels();
      folder_.commit();
    });
  }

 private:
  void check_labels() const {
    int64_t expected = 0;
    for (const int64_t label : labels_) {
      TORCH_CHECK_VALUE(label == expected, "image_folder_sink: the labels must be 0 to ", *labels_.rbegin(),
                        " without a gap, but no label is ", expected,
                        ". When an image folder is read, labels are the positions of its class folders. Renumber the "
                        "classes, or choose another format.");
      ++expected;
    }
  }

  void write_file(const std::string& name, io::ByteSpan bytes, const Sample& sample) {
    const size_t slash = name.rfind('/');
    const std::string parent = slash == std::string::npos ? "" : name.substr(0, slash);
    if (folders_.insert(parent).second) folder_.add_folder(parent);
    const std::string path = folder_ / name;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    TORCH_CHECK_VALUE(fd >= 0 || errno != EEXIST, "image_folder_sink: ", sample.where(),
                      ": an earlier sample has the same file name ", name, ".");
    TORCH_CHECK(fd >= 0, "image_folder_sink: cannot write ", path, ": ", errno_message(errno), ".");
    state_.run("image_folder_sink", [&] { write_all(fd, bytes, path); });
  }

  /// Also closes `fd`.
  static void write_all(int fd, io::ByteSpan bytes, const std::string& path) {
    bool good = true;
    while (good && !bytes.empty()) {
      const ssize_t written = ::write(fd, bytes.data(), bytes.size());
      good = written > 0 || (written < 0 && errno == EINTR);
      if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
    }
    const int reason = errno;
    good = ::close(fd) == 0 && good;
    TORCH_CHECK(good, "image_folder_sink: cannot write ", path, ": ", errno_message(reason), ".");
  }

  NewFolder folder_;
  WriteState state_;
  std::vector<std::string> classes_;
  std::optional<bool> labelled_;
  std::set<int64_t> labels_;
  std::set<std::string> folders_;
};

}  // namespace

std::string image_file_name(const Sample& sample) {
  return picture_path(sample, {});
}

std::unique_ptr<Sink> image_folder_sink(const std::string& folder, const ImageFolderSinkOptions& options) {
  return std::make_unique<ImageFolderSink>(folder, options);
}

}  // namespace bellows::data
