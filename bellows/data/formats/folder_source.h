#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// True for the suffixes .jpg, .jpeg and .png, in upper or lower case.
bool is_picture_name(const std::filesystem::path& path);

/// The subfolders of `folder` that are splits of it: train, val, valid, validation, test. Empty if it also has other
/// subfolders, because then they are classes.
std::vector<std::string> image_folder_splits(const std::string& folder);

/// The names of the classes in the order of the labels: the subfolders, sorted by their bytes. Empty for a flat folder.
/// Ref: torchvision.datasets.ImageFolder.classes
std::vector<std::string> image_folder_classes(const std::string& folder);

/// JPEG and PNG files in class folders (field "jpg", "jpeg" or "png", and int64 "label"), or in one flat folder without
/// labels.
///
/// Samples are ordered by class, then by path, sorted by bytes. Folders inside a class belong to it. The key is the
/// path below `folder` without its suffix. Other kinds of files are skipped, and so are files beside class folders.
/// Params: split – one of image_folder_splits(); "": `folder` has no splits
/// Cost:   opening lists the folders and reads no file; it keeps one path per sample. Reading copies the file into the
///         sample's buffer, because mapping each file would cost more
/// Throws: c10::ValueError if there are no images or a class is empty; if there are splits and none is chosen; if there
///         are images of an unsupported kind (.webp, .bmp, .tif, …), which other libraries would count. read() throws
///         c10::ValueError if the file cannot be read
/// Ref:    torchvision.datasets.ImageFolder(folder)
SourcePtr open_image_folder(const std::string& folder, const std::string& split = "");

struct ImageFolderSinkOptions {
  std::vector<std::string> classes = {};  ///< names of the class folders; empty: the label as five digits, "00007"
};

/// Writes images as CLASS/KEY.SUFFIX, or as KEY.SUFFIX if samples have no label. The folder appears under its name when
/// close() is called.
///
/// An image is a field jpg, jpeg, png or image; decoded images (uint8 "image") become PNG. The label is a number in
/// cls, json or int64 "label". A key keeps its folders; without keys, files are named after the samples' ids. Reading
/// assigns labels by counting the class folders, so close() rejects labels with a gap.
/// Params: folder – must not exist, or must be empty
/// Throws: c10::ValueError if the folder is not empty. write() throws c10::ValueError if a sample has no image or has
///         other fields (they would be lost); if only some samples have a label, or a label has no class; if a key
///         leads out of the folder or occurs twice. close() throws c10::ValueError if the labels have a gap
std::unique_ptr<Sink> image_folder_sink(const std::string& folder, const ImageFolderSinkOptions& options = {});

/// The file name of the sample below the folder of an image_folder_sink() without classes.
/// Throws: as write()
std::string image_file_name(const Sample& sample);

}  // namespace bellows::data
