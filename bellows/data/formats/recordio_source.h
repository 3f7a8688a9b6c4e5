#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

/// MXNet's RecordIO files of pictures (IRHeader and a picture's file) with random access.
///
/// The content becomes the field "jpg" or "png", whichever it is, or else "data". "label" is a scalar int64 array where
/// all the records' single labels are whole numbers, otherwise float32; of a record with a list of labels a float32
/// array [n]. The header's ids are not handed on. Beside X.rec an X.idx may stand, on a server, too: then the samples come in
/// its order, and it has to name each record of the file once.
/// Params: files – in order
/// Cost:   opening reads the head of each record; 8 bytes a record are kept. Only records that hold the format's magic
///         number are copied.
/// Throws: c10::ValueError – no files, a missing or damaged one, a record without IRHeader (path and byte offset), an
///         index of another file; read() – as at opening. c10::Error – the network failed, also for the index
/// Ref:    mxnet.recordio; dmlc-core/include/dmlc/recordio.h
SourcePtr open_recordio(const std::vector<std::string>& files);

/// Where the index of a file stands: X.idx for X.rec, otherwise FILE.idx; of a URL with the same query.
std::string recordio_index_path(const std::string& file);

/// Writes a RecordIO file and its index, whose keys count from 0; the header's id is the sample's.
///
/// A sample has at most one field of bytes, which becomes the content, and a label: an array "label" of integers or
/// float32, scalar or [n], or a number as "cls" text. There is no place for anything else; the key is not kept.
/// Throws: c10::ValueError – write(): other fields or no label, a label that float32 does not hold exactly, 512 MiB and more
std::unique_ptr<Sink> recordio_sink(const std::string& path);

}  // namespace bellows::data
