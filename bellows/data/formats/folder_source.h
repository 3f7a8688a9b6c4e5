#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// By its suffix, in any case: .jpg, .jpeg or .png.
bool is_picture_name(const std::filesystem::path& path);

/// The subfolders of `folder` that are splits of it: train, val, valid, validation, test. Empty where it has other
/// subfolders too: then they are classes.
std::vector<std::string> image_folder_splits(const std::string& folder);

/// The names of the classes, in the order of the labels: the subfolders, sorted by their bytes. Empty: a flat folder.
/// Ref: torchvision.datasets.ImageFolder.classes
std::vector<std::string> image_folder_classes(const std::string& folder);

/// JPEG and PNG files in class folders (field "jpg", "jpeg" or "png", and int64 "label"), or in one flat folder without
/// labels.
///
/// Samples are in the order of their class, then of their path, sorted by bytes; folders inside a class belong to it.
/// The key is the path below `folder` without its suffix. Files of other kinds are passed over, as are files beside
/// class folders.
/// Params:   split – of those that image_folder_splits() gives; "": `folder` has none
/// Cost:     opening lists the folders and reads no file; a path a sample. Reading copies the file into the sample's
///           buffer: a file each, so mapping would cost more
/// Throws:   c10::ValueError – no pictures, an empty class, splits and none chosen, pictures of a kind that is not read
///           (.webp, .bmp, .tif, …), which other libraries would count; read() – the file cannot be read
/// Ref:      torchvision.datasets.ImageFolder(folder)
SourcePtr open_image_folder(const std::string& folder, const std::string& split = "");

struct ImageFolderSinkOptions {
  std::vector<std::string> classes = {};  ///< names of the class folders; empty: labels as five digits, "00007"
};

/// Writes pictures as CLASS/KEY.SUFFIX, or KEY.SUFFIX where samples have no label; the folder appears under its name only
/// by close().
///
/// A picture is a field jpg, jpeg, png or image; decoded ones (uint8 "image") become PNG. The label is a number in cls,
/// json or int64 "label". A key keeps its folders; without keys, files are numbered by the samples' ids. When read, labels
/// count the class folders that are there, so close() refuses labels that leave one out.
/// Params:   folder – not there yet, or empty
/// Throws:   c10::ValueError – the folder is in use; write() – no picture, other fields (they would be lost), a label for
///           some samples only or without a class, a key that leads out of the folder or occurs twice; close() – a gap among labels
std::unique_ptr<Sink> image_folder_sink(const std::string& folder, const ImageFolderSinkOptions& options = {});

/// What image_folder_sink() without classes calls the sample's file, below its folder.
/// Throws:   as write()
std::string image_file_name(const Sample& sample);

}  // namespace bellows::data
