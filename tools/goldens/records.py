"""Writes the reference files of tests/goldens/interop/records with the original packages, and has them read ours.

    python tools/goldens/records.py tfrecord                    writes the goldens of TFRecord (package tfrecord)
    python tools/goldens/records.py recordio                    writes the goldens of RecordIO (package mxnet)
    python tools/goldens/records.py tfrecord --verify FOLDER    reads back what interop_records_test wrote there
    python tools/goldens/records.py recordio --verify FOLDER    (environment variable BELLOWS_INTEROP_OUT)
"""

import argparse
import gzip
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "interop" / "records"
IMAGES = ROOT / "tests" / "goldens" / "io" / "images"
MAGIC = struct.pack("<I", 0xCED7230A)


def image(name):
    return (IMAGES / name).read_bytes()


def float_bits(values):
    return list(struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values)))


# TFRecord


def examples():
    """Features as the package takes them: name -> (values, type)."""
    limits = [0, 1, -1, 127, 128, 300, -300, 2**31, 2**63 - 1, -(2**63)]
    floats = [0.0, -0.0, 1.5, float("inf"), float("-inf"), 1e-45, 3.4e38, float("nan")]
    return [
        {"image/encoded": ([image("gray.jpg")], "byte"), "image/class/label": ([3], "int"), "image/format": ([b"jpeg"], "byte")},
        {"image/encoded": ([image("gray.png")], "byte"), "image/class/label": ([-2], "int")},
        {"numbers": (limits, "int"), "floats": (floats, "float")},
        {"no bytes": ([], "byte"), "no floats": ([], "float"), "no ints": ([], "int"), "no text": ([b""], "byte")},
        {"many": ([b"one", b"", b"three"], "byte"), "\u00e4\u2192\U0001f525": ([b"\xff\x00"], "byte"), "": ([7], "int")},
        {},
        {"long": ([bytes(i * i % 251 for i in range(20000))], "byte")},
        {"label": ([5], "int"), "xy": ([2], "int"), "x": ([0.25 * i for i in range(12)], "float"), "one": ([0.5], "float")},
    ]


def described(example):
    """What C++ reads: [name, kind, values], with bytes in hexadecimal and floats by their bits."""
    kinds = {"byte": "bytes", "float": "floats", "int": "int64s"}
    show = {"byte": lambda values: [v.hex() for v in values], "float": float_bits, "int": list}
    return [[name, kinds[kind], show[kind](values)] for name, (values, kind) in sorted(example.items(), key=lambda f: f[0].encode())]


def parsed(message):
    """The content of an Example as protobuf understands it; None when it does not."""
    from google.protobuf.message import DecodeError
    from tfrecord import example_pb2

    example = example_pb2.Example()
    try:
        example.ParseFromString(message)
    except (DecodeError, UnicodeDecodeError):
        return None
    result = []
    for name, feature in sorted(example.features.feature.items(), key=lambda f: f[0].encode()):
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        if kind == "bytes_list":
            values = [v.hex() for v in values]
        if kind == "float_list":
            values = float_bits(values)
        result.append([name, {"bytes_list": "bytes", "float_list": "floats", "int64_list": "int64s", None: "none"}[kind], values])
    return result


def delimited(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def hand_made():
    """Messages that no writer of today makes, and every reader has to understand or refuse."""
    floats = struct.pack("<2f", 1.5, -2.5)

    def example(*entries):
        return delimited(1, b"".join(delimited(1, entry) for entry in entries))

    def entry(name, kind, values):
        return delimited(1, name) + delimited(2, delimited(kind, values))

    minus_one = varint(2**64 - 1)
    return [
        b"",
        example(),
        example(entry(b"packed", 3, delimited(1, b"\x01" + minus_one))),
        example(entry(b"unpacked", 3, b"\x08\x01\x08" + minus_one + b"\x08\x7f")),
        example(entry(b"both", 3, b"\x08\x01" + delimited(1, b"\x02\x03") + b"\x08\x04" + delimited(1, b""))),
        example(entry(b"floats", 2, b"\x0d" + floats[:4] + delimited(1, floats) + b"\x0d" + floats[4:])),
        example(entry(b"twice", 3, b"\x08\x01"), entry(b"twice", 1, delimited(1, b"last wins"))),
        example(entry(b"a", 3, b"\x08\x01")) + example(entry(b"b", 3, b"\x08\x02"), entry(b"a", 3, b"\x08\x03")),
        example(delimited(2, delimited(3, b"\x08\x05"))),
        example(delimited(1, b"no value")),
        example(delimited(1, b"no kind") + delimited(2, b"")),
        example(b""),
        example(delimited(1, b"merged") + delimited(2, delimited(3, b"\x08\x01")) + delimited(2, delimited(3, b"\x08\x02"))),
        example(delimited(1, b"changed") + delimited(2, delimited(3, b"\x08\x01") + delimited(1, delimited(1, b"x")))),
        example(delimited(1, b"back") + delimited(2, delimited(3, b"\x08\x01") + delimited(2, b"") + delimited(3, b"\x08\x02"))),
        example(delimited(2, delimited(3, b"\x08\x06")) + delimited(1, b"key last")),
        example(delimited(1, b"first key") + delimited(1, b"second key") + delimited(2, delimited(3, b"\x08\x06"))),
        example(entry(b"unknown in list", 3, b"\x10\x63" + b"\x08\x01" + delimited(5, b"abc"))),
        example(entry(b"k", 3, b"\x08\x01")) + b"\x50\x05" + delimited(9, b"unknown") + b"\x59" + bytes(8) + b"\x5d" + bytes(4),
        b"\x13\x08\x01\x1b\x1c\x14" + example(entry(b"behind groups", 3, b"\x08\x01")),
        b"\x13\x08\x01\x1c" + example(),
        b"\x14" + example(),
        b"\x13",
        b"\x13" * 90 + b"\x14" * 90,
        b"\x13" * 120 + b"\x14" * 120,
        example(entry(b"long form", 3, b"\x08\x81\x80\x80\x80\x00")),
        example(entry(b"ten bytes", 3, b"\x08" + b"\x80" * 9 + b"\x01")),
        example(entry(b"eleven bytes", 3, b"\x08" + b"\x80" * 10 + b"\x01")),
        example(entry(b"packed eleven", 3, delimited(1, b"\x80" * 10 + b"\x01"))),
        example(entry(b"cut number", 3, delimited(1, b"\x01\x80"))),
        example(entry(b"cut float", 2, delimited(1, b"\0\0\0"))),
        example(entry(b"as fixed", 3, b"\x0d\0\0\0\0\x09" + bytes(8))),
        example(entry(b"as varint", 2, b"\x08\x01")),
        example(entry(b"bytes as varint", 1, b"\x08\x01")),
        example(entry(b"\xff\xfe", 3, b"\x08\x01")),
        example(entry(b"\xed\xa0\x80", 3, b"\x08\x01")),
        example(entry(b"\xc0\x80", 3, b"\x08\x01")),
        example(entry(b"\xf4\x90\x80\x80", 3, b"\x08\x01")),
        example(entry("\u00e4\u20ac\U0001f525".encode(), 3, b"\x08\x01")),
        b"\x0a\x05",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x00\x00",
        b"\x0e\x00",
        b"\x0f\x00",
        b"\x82\x80\x80\x80\x80\x80\x00\x00",
        b"\x8a\x80\x80\x80\x00\x00",
    ]


def mutated(messages, count):
    rng = random.Random(20240607)
    for _ in range(count):
        message = bytearray(rng.choice(messages))
        for _ in range(rng.randint(1, 3)):
            if not message:
                break
            at = rng.randrange(len(message))
            kind = rng.randrange(4)
            if kind == 0:
                message[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                message[at] = rng.choice([0, 1, 8, 10, 18, 26, 0x7F, 0x80, 0xFF])
            elif kind == 2:
                del message[at : at + rng.randrange(4)]
            else:
                message[at:at] = message[at : at + rng.randrange(6)]
        yield bytes(message)


def messages():
    made = hand_made()
    return made + list(mutated([m for m in made if len(m) < 60], 700))


def deterministic():
    """The messages of the examples with their features in order. (The C implementation for Python puts "ab" before "a".)"""
    from tfrecord import TFRecordWriter, example_pb2

    plain = [TFRecordWriter.serialize_tf_example(e) for e in examples()]
    return [example_pb2.Example.FromString(m).SerializeToString(deterministic=True) for m in plain]


def with_python_protobuf():
    """What protobuf's implementation in Python says: [what it reads in messages(), deterministic()]."""
    command = [sys.executable, __file__, "tfrecord", "--python-protobuf"]
    return json.loads(subprocess.check_output(command, env=dict(os.environ, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")))


def python_protobuf():
    json.dump([[[m.hex(), parsed(m)] for m in messages()], [m.hex() for m in deterministic()]], sys.stdout)


def write_messages(other):
    """Messages with what protobuf makes of them: its C implementation and the one in Python have to agree."""
    made = hand_made()
    mine = [[m.hex(), parsed(m)] for m in messages()]
    kept = [a for a, b in zip(mine, other) if a == b]
    for a, b in zip(mine[: len(made)], other):
        if a != b:
            print("left out, as the two implementations differ:", a, b[1], file=sys.stderr)
    lines = ",\n".join(json.dumps(m, ensure_ascii=True) for m in kept)
    (OUT / "messages.json").write_text(f"[\n{lines}\n]\n")
    print(len(kept), "of", len(mine), "messages kept,", sum(m[1] is None for m in kept), "of them no Example")


def write_tfrecord():
    import google.protobuf
    import tfrecord
    from tfrecord.tools import create_index

    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "examples.json").write_text(json.dumps([described(e) for e in examples()], indent=0) + "\n")

    def write(name, features):
        writer = tfrecord.TFRecordWriter(str(OUT / name))
        for example in features:
            writer.write(example)
        writer.close()

    write("any_order.tfrecord", examples())
    write("single.tfrecord", [{name: value} for example in examples() for name, value in sorted(example.items())])
    # The order of a map's entries is protobuf's own, except in its deterministic serialisation.
    read, ordered = with_python_protobuf()
    plain = tfrecord.TFRecordWriter.serialize_tf_example
    tfrecord.TFRecordWriter.serialize_tf_example = staticmethod(bytes.fromhex)
    write("examples.tfrecord", ordered)
    tfrecord.TFRecordWriter.serialize_tf_example = staticmethod(plain)
    write("empty.tfrecord", [])
    create_index(str(OUT / "examples.tfrecord"), str(OUT / "examples.tfindex"))
    content = (OUT / "examples.tfrecord").read_bytes()
    (OUT / "examples.tfrecord.gz").write_bytes(gzip.compress(content, mtime=0))
    (OUT / "examples.tfrecord.zz").write_bytes(zlib.compress(content))
    write_messages(read)
    versions = {"tfrecord": "1.14.6", "protobuf": google.protobuf.__version__}
    note_versions(versions)


def note_versions(versions):
    path = OUT / "versions.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **versions}, indent=1, sort_keys=True) + "\n")


def same(found, expected):
    import numpy as np

    if isinstance(expected, list) and expected and isinstance(expected[0], bytes):
        found = [found] if isinstance(found, bytes) else list(found)
        # numpy strips zero bytes from the end of lists of byte strings; single ones it leaves alone.
        return [f.rstrip(b"\0") for f in found] == [e.rstrip(b"\0") for e in expected] if len(expected) > 1 else found == expected
    return np.array_equal(np.asarray(found), np.asarray(expected, dtype=np.asarray(found).dtype), equal_nan=np.asarray(found).dtype.kind == "f")


def verify_tfrecord(folder):
    import tfrecord
    from tfrecord.tools import create_index

    def read(name, index=None, description=None):
        return list(tfrecord.tfrecord_loader(str(folder / name), index and str(folder / index), description, shard=(0, 1)))

    for index in [None, "examples.tfindex"]:
        got = read("examples.tfrecord", index)
        assert len(got) == len(examples()), len(got)
        for found, example in zip(got, examples()):
            assert sorted(found) == sorted(example), (sorted(found), sorted(example))
            for name, (values, _) in example.items():
                assert same(found[name], values), (name, found[name], values)
    create_index(str(folder / "examples.tfrecord"), str(folder / "theirs.index"))
    assert (folder / "theirs.index").read_bytes() == (folder / "examples.tfindex").read_bytes()

    (arrays,) = read("arrays.tfrecord")
    assert arrays["__key__"] == b"folder/0001", arrays
    assert arrays["image"] == bytes(range(24)), arrays
    assert arrays["int32"].tolist() == [-1, 2, -3, 4, -5, 6] and arrays["bool"].tolist() == [1, 0, 1], arrays
    assert arrays["jpg"] == image("gray.jpg"), arrays
    assert b"uint8[2,4,3] image" in list(arrays["bellows/arrays"]), arrays
    print("all TFRecord files read back by tfrecord")


# RecordIO


def records():
    """File -> records (label, id, id2, content)."""
    nan = float("nan")
    return {
        "images": [
            (3, 10, 0, image("gray.jpg")),
            (-1.0, 2**63 + 5, 7, image("gray.png")),
            (2**24, 12, 0, b""),
            (0, 13, 0, image("gray.jpg") + b"x"),
        ],
        "labels": [
            (0.5, 0, 0, b"a"),
            ([1.0, 2.5], 1, 0, b"ab"),
            ([7], 2, 0, b"abc"),
            (nan, 3, 0, b"abcd"),
            ([float(i) for i in range(9)], 4, 0, b""),
        ],
        # The header has 24 bytes, so a place in the content is aligned where it is a multiple of four.
        "magic": [
            (1, 0, 0, MAGIC),
            (2, 0, 0, MAGIC * 3),
            (3, 0, 0, b"abcd" + MAGIC + b"efghijkl" + MAGIC + b"mn"),
            (4, 0, 0, b"a" + MAGIC + b"bcd"),
            (5, struct.unpack("<Q", MAGIC + b"\1\2\3\4")[0], 0, b"a magic in the header"),
            (6, 0, 0, b"abc" + MAGIC + b"d" + MAGIC),
            (struct.unpack("<f", MAGIC)[0], 0, 0, MAGIC[:3]),
        ],
    }


def described_record(label, id_, id2, content):
    labels = label if isinstance(label, list) else [label]
    return {
        "flag": len(labels) if isinstance(label, list) else 0,
        "labels": float_bits(labels),
        "id": id_,
        "id2": id2,
        "content": content.hex(),
    }


def write_recordio():
    import mxnet as mx

    OUT.mkdir(parents=True, exist_ok=True)
    for name, content in records().items():
        rec = mx.recordio.MXIndexedRecordIO(str(OUT / f"{name}.idx"), str(OUT / f"{name}.rec"), "w")
        for key, (label, id_, id2, data) in enumerate(content):
            rec.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(0, label, id_, id2), data))
        rec.close()
    described_files = {name: [described_record(*r) for r in content] for name, content in records().items()}
    (OUT / "records.json").write_text(json.dumps(described_files, indent=0) + "\n")
    # Not the order of the file.
    lines = (OUT / "images.idx").read_text().splitlines(keepends=True)
    (OUT / "reversed.idx").write_text("".join(reversed(lines)))
    note_versions({"mxnet": mx.__version__})


def verify_recordio(folder):
    import mxnet as mx
    import numpy as np

    for name, expected in records().items():
        rec = mx.recordio.MXIndexedRecordIO(str(folder / f"{name}.idx"), str(folder / f"{name}.rec"), "r")
        assert rec.keys == list(range(len(expected))), rec.keys
        for key in [*reversed(rec.keys), *rec.keys]:
            label, _, _, content = expected[key]
            header, found = mx.recordio.unpack(rec.read_idx(key))
            assert found == content, (name, key, found)
            assert np.array_equal(np.float32(header.label), np.float32(label), equal_nan=True), (name, key, header)
            assert header.id == key and header.id2 == 0, (name, key, header)
        rec.close()
    print("all RecordIO files read back by mxnet", mx.__version__)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", choices=["tfrecord", "recordio"])
    parser.add_argument("--verify", type=pathlib.Path)
    parser.add_argument("--python-protobuf", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.python_protobuf:
        return python_protobuf()
    verify, write = {"tfrecord": (verify_tfrecord, write_tfrecord), "recordio": (verify_recordio, write_recordio)}[arguments.format]
    return verify(arguments.verify) if arguments.verify else write()


if __name__ == "__main__":
    main()
