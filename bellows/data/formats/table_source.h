#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"

namespace bellows::data {

struct CsvOptions {
  std::vector<std::string> columns = {};  ///< names of the columns; use it if the files have no header line
  std::vector<std::string> text = {};     ///< columns that are read as text, regardless of their values
  /// Column with the paths of images. The image becomes a field "image", which replaces the column. If empty, no images
  /// are read.
  std::string image_column = "";
  std::string image_folder = "";  ///< base folder of these paths; "": the folder of the file
  char separator = ',';
};

/// Opens one or more CSV files, which must have the same header. Quotes follow RFC 4180, so a quoted cell may contain
/// line ends. Lines end in CR LF or LF.
///
/// The type of a column depends on its cells in all files:
/// - int64: all cells are integers
/// - uint64: all cells are integers that are not negative, and some are 2^63 or more
/// - float64: all cells are numbers or empty (NaN)
/// - text, which becomes a field of bytes: all other columns
///
/// A column is also text if it has a number with leading zeros, an integer of more than 64 bits, or a number that
/// exceeds float64 (1e400). The columns "cls", "txt" and "json" are always text, and "__key__" holds the keys of the
/// samples. "label" is text if the first row has a class name. Otherwise, it must be int64.
/// Cost:   opening reads all files once, remote files one after another, and stores 8 bytes per row. Reading copies
///         only cells with doubled quotes
/// Throws: c10::ValueError (the message names the file, line and byte) if there are no rows; if a header is missing or
///         differs from that of the first file; if two columns have the same name; if the number of cells in a row
///         differs from that in the header; if a quote is not closed; if the first label is a number and a later label
///         is not; if the options name an unknown column. read() throws c10::ValueError if an image is missing or
///         outside its folder
/// Ref:    Python's csv.DictReader
SourcePtr open_csv(const std::vector<std::string>& paths, const CsvOptions& options = {});

struct CsvSinkOptions {
  char separator = ',';
};

/// Writes a CSV file with a header. close() moves the finished file to `path`.
/// Throws: c10::ValueError if the separator is a quote or a line end. write() throws c10::ValueError if an array is not
///         a single number, if bytes are not UTF-8 text, or if the fields differ from those of the first sample
/// Ref:    Python's csv.writer, which writes the same bytes; floats are written in the format of repr()
std::unique_ptr<Sink> csv_sink(const std::string& path, const CsvSinkOptions& options = {});

struct JsonlOptions {
  std::string image_column = "";  ///< see CsvOptions
  std::string image_folder = "";
};

/// Opens JSON Lines files, which have one object per line. Empty lines are skipped.
///
/// The values of an object become fields:
/// - Numbers and (nested) lists of numbers become arrays. All numbers with one name have the same type. The type is
///   int64, uint64 if some numbers are 2^63 or more, or float64 if some have a fraction or an exponent.
/// - true and false become bool arrays.
/// - Texts become fields of bytes.
/// - All other values, including null, become fields of bytes that hold the JSON. jsonl_sink() writes this JSON
///   unchanged.
///
/// "__key__" holds the keys of the samples.
/// Cost:   opening parses all files once, remote files one after another, and stores 8 bytes per line
/// Throws: c10::ValueError (the message names the file, line and byte) if there are no lines; if a line is not a JSON
///         object or is nested deeper than 256 levels; if a name occurs twice in an object; if no type can represent
///         the integers with one name exactly; if the image column does not exist
SourcePtr open_jsonl(const std::vector<std::string>& paths, const JsonlOptions& options = {});

/// Writes a JSON Lines file. Arrays become (nested) lists, and all other fields become texts. close() moves the
/// finished file to `path`.
/// Throws: c10::ValueError from write() for NaN, infinity, complex numbers, bytes that are not UTF-8 text, and names
///         that occur twice
/// Ref:    Python's json.dumps, which writes the same bytes
std::unique_ptr<Sink> jsonl_sink(const std::string& path);

}  // namespace bellows::data
