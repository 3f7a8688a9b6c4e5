#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// MXNet's RecordIO files of images (an IRHeader and an image file per record) with random access.
///
/// The content becomes the field "jpg" or "png", depending on its format, else "data". If the single labels of all
/// records are integers, "label" is a scalar int64 array, else float32; a record with a list of labels has a float32
/// array [n]. The header's ids are ignored. If X.rec has an index X.idx beside it (also on a server), the samples are
/// in its order; the index must name each record of the file once.
/// Params: files – in order
/// Cost:   opening reads the head of each record and keeps 8 bytes per record. Only records that contain the format's
///         magic number are copied
/// Throws: c10::ValueError if there are no files; if a file is missing or damaged, or a record has no IRHeader (the
///         message names the path and the byte offset); if an index belongs to another file. read() throws
///         c10::ValueError for the same damages. c10::Error if the network fails, also for the index
/// Ref:    mxnet.recordio; dmlc-core/include/dmlc/recordio.h
SourcePtr open_recordio(const std::vector<std::string>& files);

/// The path of a file's index: X.idx for X.rec, otherwise FILE.idx; a URL keeps its query.
std::string recordio_index_path(const std::string& file);

/// Writes a RecordIO file and its index, whose keys count from 0; the header's id is the sample's id.
///
/// A sample has at most one field of bytes, which becomes the content, and a label: an array "label" of integers or
/// float32, scalar or [n], or a number as "cls" text. The format supports no other fields; the key is not kept.
/// Throws: c10::ValueError from write() if a sample has other fields or no label, if float32 cannot represent the label
///         exactly, or if the record has 512 MiB or more
std::unique_ptr<Sink> recordio_sink(const std::string& path);

}  // namespace bellows::data
