"""Writes tests/goldens/interop/mds: what mosaicml-streaming's MDSWriter makes of small samples.
Run: .deps/interop/bin/python tools/goldens/mds.py
     .deps/interop/bin/python tools/goldens/mds.py --verify FOLDER   reads with StreamingDataset what our tests wrote there
"""
import importlib.metadata
import io
import json
import os
import shutil
import sys
from decimal import Decimal

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.hashing import get_hashes

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT = os.path.join(ROOT, "tests", "goldens", "interop", "mds")

COLUMNS = {
    "b": "bytes", "s": "str", "i": "int", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "f16": "float16", "f32": "float32", "f64": "float64", "si": "str_int", "sf": "str_float",
    "sd": "str_decimal", "any": "ndarray", "typed": "ndarray:float32", "fixed": "ndarray:int16:2,3", "jpeg": "jpeg", "png": "png",
    "pil": "pil", "jpegs": "jpegarray", "jpegs2": "jpeg_array", "pils": "list[pil]", "pngs": "list[png]", "jpegl": "list[jpeg]",
    "json": "json", "ümlaut": "str"}
ARRAYS = {"i": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
          "i64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "si": np.int64, "sf": np.float64}
MODES = ["RGB", "L", "RGBA", "F", "I", "LA"]
DTYPES = ["uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"]


def picture(i, mode="RGB"):
    random = np.random.RandomState(i)
    return Image.fromarray(random.randint(0, 256, (3 + i, 5, 3)).astype(np.uint8)).convert(mode)


def encoded(image, kind):
    out = io.BytesIO()
    image.save(out, format=kind)
    return out.getvalue()


def sample(i):
    random = np.random.RandomState(100 + i)
    shape = [(2,), (300,), (2, 1, 3), (1, 1, 1, 1), (257,), (4, 4)][i]
    return {
        "b": bytes(range(i)), "s": ["", "plain", "zwölf ☃", "\n\t\"", "x" * 300, "🔥"][i], "i": -i * 10**12, "u8": 255 - i, "u16": 65535 - i,
        "u32": 2**32 - 1 - i, "u64": 2**63 - 1 - i, "i8": -128 + i, "i16": -32768 + i, "i32": -2**31 + i, "i64": -2**63 + i,
        "f16": 0.1 * i, "f32": 0.1 * i, "f64": [0.1, -0.0, float("inf"), float("nan"), 1e-300, 1e22][i],
        "si": [0, -1, 2**62, 7, 8, 9][i], "sf": [0.1, -0.0, 1e22, 5e-324, 1e16, 123456789.125][i],
        "sd": Decimal("3.14159265358979323846264338327950288") * i,
        "any": random.randint(0, 100, shape).astype(DTYPES[i]), "typed": random.rand(*shape[:2]).astype(np.float32),
        "fixed": random.randint(-9, 9, (2, 3)).astype(np.int16), "jpeg": picture(i), "png": picture(i, "RGBA"), "pil": picture(i, MODES[i]),
        "jpegs": [encoded(picture(k), "JPEG") for k in range(1, 2 + i % 2)], "jpegs2": [encoded(picture(4), "JPEG")],
        "pils": [picture(k) for k in range(i % 3)], "pngs": [picture(k, "L") for k in range(i % 2)], "jpegl": [picture(3)],
        "json": [None, 1, "text", [1, 2.5], {"b": 1, "a": [True]}, {}][i], "ümlaut": "ä" * i}


def expected(i):
    """What our reader makes of each column: arrays with type, shape and bytes; bytes."""
    from streaming.base.format.mds.encodings import mds_encode
    result = {}
    for name, value in sample(i).items():
        if name in ARRAYS:
            value = ARRAYS[name](value)
        elif name == "pil":
            value = np.asarray(value)
            value = value.reshape(*value.shape[:2], -1)
        if isinstance(value, (np.ndarray, np.generic)):
            result[name] = {"dtype": value.dtype.name, "shape": list(value.shape), "bytes": value.tobytes().hex()}
        else:
            result[name] = {"bytes": mds_encode(COLUMNS[name], value).hex()}
    return result


def write(name, columns, samples, **options):
    with MDSWriter(out=os.path.join(OUT, name), columns=columns, **options) as writer:
        for one in samples:
            writer.write(one)


def goldens():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    write("all", COLUMNS, [sample(i) for i in range(6)], size_limit=12000, hashes=["sha1", "xxh64"])
    plain = [{"number": i, "text": f"sample {i} " * 20} for i in range(7)]
    columns = {"text": "str", "number": "int"}
    write("hashes", columns, plain, hashes=sorted(get_hashes()), size_limit=None)
    for codec in ["br", "bz2", "gz", "snappy", "zstd", "zstd:7", "br:3", "bz2:1", "gz:1"]:
        write(codec.replace(":", "_"), columns, plain, compression=codec, hashes=["xxh3_64"], size_limit=900)
    write("pkl", {"x": "pkl"}, [{"x": {1, 2}}])
    versions = {name: importlib.metadata.version(name) for name in ["mosaicml-streaming", "numpy", "pillow", "zstd", "brotli", "python-snappy"]}
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump({"versions": versions, "all": [expected(i) for i in range(6)], "plain": plain}, file)


def same(found, wanted, where):
    if isinstance(wanted, Image.Image):
        assert found.mode == wanted.mode and found.size == wanted.size and found.tobytes() == wanted.tobytes(), where
    elif isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes(), where
    elif isinstance(wanted, list) and wanted and isinstance(wanted[0], Image.Image):
        assert len(found) == len(wanted), where
        for a, b in zip(found, wanted):
            same(a, b, where)
    else:
        assert np.asarray(found == wanted).all() or (found != found and wanted != wanted), f"{where}: {found!r}, expected {wanted!r}"


def verify(folder):
    """Reads the data sets that the tests of mds_sink wrote, and compares them with the samples above."""
    count = 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        cache = path + ".verify"
        shutil.copytree(path, cache)  # reading unpacks beside the shards
        algorithm = json.load(open(os.path.join(path, "index.json")))["shards"][0]["hashes"][:1]
        data = StreamingDataset(local=cache, batch_size=1, validate_hash=algorithm[0] if algorithm else None)
        for i in range(len(data)):
            found = data[i]
            if name.startswith("learnt"):
                same(found["__key__"], f"key{i}", f"{name} {i}")
                same(found["label"], np.int64(i), f"{name} {i}")
                same(found["x"], np.arange(6, dtype=np.float32).reshape(2, 3) + i, f"{name} {i}")
                same(found["png"].size, (8, 8), f"{name} {i}")
                same(found["json"], {"i": i}, f"{name} {i}")
            else:
                wanted = sample(i) if name == "all" else {"number": i, "text": f"sample {i} " * 20}
                assert set(found) == set(wanted), name
                for column in wanted:
                    if column in ("jpeg", "jpegs", "jpegs2", "jpegl"):
                        continue  # these decode to other pixels than went in; the tests compare the files
                    value = wanted[column]
                    if column in ("f16", "f32"):
                        value = ARRAYS[column](value)
                    same(found[column], value, f"{name}, sample {i}, column {column}")
            count += 1
        shutil.rmtree(cache)
    assert count >= 6 + 7 * 6 + 3, count
    print(f"mosaicml-streaming {importlib.metadata.version('mosaicml-streaming')} reads {count} samples of {len(os.listdir(folder))} data sets as they were")


if __name__ == "__main__":
    verify(sys.argv[2]) if sys.argv[1:2] == ["--verify"] else goldens()
