#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// Returns true for the suffixes .jpg, .jpeg and .png, in upper or lower case.
bool is_picture_name(const std::filesystem::path& path);

/// Returns the subfolders of `folder` that are splits: train, val, valid, validation and test. If there are also other
/// subfolders, all subfolders are classes, and the result is empty.
std::vector<std::string> image_folder_splits(const std::string& folder);

/// Returns the names of the classes in the order of the labels. These are the names of the subfolders in byte order.
/// The result is empty for a flat folder.
/// Ref: torchvision.datasets.ImageFolder.classes
std::vector<std::string> image_folder_classes(const std::string& folder);

/// Opens a folder of JPEG and PNG files. The files are in class folders, or in one flat folder without labels. A sample
/// has a field "jpg", "jpeg" or "png" and, with class folders, an int64 array "label".
///
/// Samples are sorted by class, then by path, both in byte order. A class also contains the files in folders below its
/// class folder. The key of a sample is its path below `folder` without the suffix. Files of other kinds and files next
/// to class folders are skipped.
/// Params: split – one of image_folder_splits(); "" if `folder` has no splits
/// Cost:   opening lists the folders, reads no files and stores one path per sample. Reading copies the file into the
///         buffer of the sample, because mapping each file would be slower
/// Throws: c10::ValueError if there are no images or a class is empty; if there are splits and `split` is empty; if
///         `split` is unknown (the message suggests the nearest name); if folders are nested more than 64 levels deep;
///         if there are images in an unsupported format (.webp, .bmp, .tif, …), because skipping them would give another
///         dataset than other libraries load. read() throws c10::ValueError if the file cannot be read
/// Ref:    torchvision.datasets.ImageFolder(folder)
SourcePtr open_image_folder(const std::string& folder, const std::string& split = "");

/// Returns the JPEG and PNG files in `folder` and in all folders below it, sorted by path. Hidden files and folders are
/// left out.
/// Throws: c10::ValueError if `folder` cannot be listed, or if folders are nested more than 64 levels deep
std::vector<std::string> list_image_files(const std::string& folder);

/// Opens individual image files, without labels. Sample i is the file `paths[i]`. Its key is the path.
/// Cost:   opening reads no files. Files that are missing or damaged are bad samples
/// Throws: c10::ValueError if `paths` is empty. read() throws c10::ValueError if the file cannot be read
SourcePtr open_image_files(std::vector<std::string> paths);

struct ImageFolderSinkOptions {
  /// Names of the class folders, sorted. If empty, a folder is named after its label, such as "00007".
  std::vector<std::string> classes = {};
};

/// Writes images as CLASS/KEY.SUFFIX, or as KEY.SUFFIX if samples have no label. close() moves the finished folder to
/// `folder`.
///
/// The image is a field "jpg", "jpeg", "png" or "image". Decoded images (uint8 "image") are encoded as PNG. The label
/// is a number in "cls" or "json", or an int64 array "label". A key may contain folders. Files of samples without a key
/// are named after the ids.
///
/// When the folder is read, the label of a class is the position of its folder in the sorted list of class folders.
/// Therefore, close() rejects labels with a gap, such as 0 and 2 without 1.
/// Params: folder – must not exist, or must be empty
/// Throws: c10::ValueError if the folder is not empty or `classes` is not sorted. write() throws c10::ValueError if a
///         sample has no image or has other fields, which would be lost; if only some samples have a label, or a label
///         has no class; if a key leads out of the folder or occurs twice. close() throws c10::ValueError if the labels
///         have a gap
std::unique_ptr<Sink> image_folder_sink(const std::string& folder, const ImageFolderSinkOptions& options = {});

/// Returns the path of a sample's file below the folder of an image_folder_sink() without `classes`.
/// Throws: see image_folder_sink()
std::string image_file_name(const Sample& sample);

}  // namespace bellows::data
