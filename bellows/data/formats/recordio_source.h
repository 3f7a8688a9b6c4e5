#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// Opens MXNet's RecordIO files with random access. Each record consists of an IRHeader and an image file.
///
/// The image file becomes the field "jpg" or "png", depending on its format. If it is neither, it becomes the field
/// "data". The ids in the headers are ignored.
///
/// A single label becomes a scalar array "label". Its type is int64 if the single labels of all records are integers,
/// otherwise float32. A list of labels becomes a float32 array "label" [n].
///
/// If an index X.idx exists next to X.rec (on disk or on the server), it determines the order of the samples. The index
/// must list each record of the file exactly once.
/// Params: files – paths and URLs, in order
/// Cost:   opening reads the head of each record and stores 8 bytes per record. Reading copies a record only if it
///         contains the format's magic number
/// Throws: c10::ValueError if there are no files; if a file is missing or damaged, or a record has no IRHeader (the
///         message names the path and the byte offset); if an index belongs to a different file. read() throws
///         c10::ValueError if a record is damaged. c10::Error if the network fails while a file or an index is fetched
/// Ref:    mxnet.recordio; dmlc-core/include/dmlc/recordio.h
SourcePtr open_recordio(const std::vector<std::string>& files);

/// Returns the path of a file's index: X.idx for X.rec, otherwise FILE.idx. The query of a URL is preserved.
std::string recordio_index_path(const std::string& file);

/// Writes a RecordIO file and its index. The keys in the index count from 0. The id in a header is the id of the
/// sample.
///
/// A sample has a label and at most one field of bytes, which becomes the content of the record. The label is an array
/// "label" of integers or float32 (a scalar or [n]), or a number as "cls" text. The format supports no other fields.
/// Keys are not stored.
/// Throws: c10::ValueError from write() if a sample has unsupported fields or no label, if float32 cannot represent the
///         label exactly, or if the record has 512 MiB or more
std::unique_ptr<Sink> recordio_sink(const std::string& path);

}  // namespace bellows::data
