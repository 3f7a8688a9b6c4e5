"""A second implementation of the pack, written from docs/formats.md alone. It needs nothing beside Python.

    python tools/goldens/pack.py                 writes tests/goldens/io/second.pack
    python tools/goldens/pack.py --verify FILE   reads a pack, checks all of it, prints its samples' keys and fields
"""

import argparse
import pathlib
import struct

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "io" / "second.pack"
MAGIC, END = b"\x89BWPACK\n", b"BWPKEND\n"
FILE, FIXED, SHAPED = 0, 1, 2
WIDTH = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 9: 8, 10: 16, 11: 1, 15: 2, 23: 1, 24: 1, 27: 2, 28: 4, 29: 8}

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def up(n, alignment):
    return -(-n // alignment) * alignment


def definition(name, kind, dtype=0, shape=()):
    data = struct.pack("<HBBI", len(name), kind, dtype, len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + name
    return data.ljust(up(len(data), 8), b"\0")


def record(key, items):
    """items: (field number, kind, shape, data); the record is to lie at a multiple of 64."""
    at = 16 + 24 * len(items) + len(key)
    head, body = b"", key
    for number, kind, shape, data in items:
        dims = len(shape) if kind == SHAPED else 0
        start = at if kind == FILE else up(at + 8 * dims, 64)
        front = struct.pack(f"<{dims}Q", *shape[:dims])
        body += front.rjust(start - at, b"\0") + data
        head += struct.pack("<IIQQ", number, dims, start, len(data))
        at = start + len(data)
    return struct.pack("<QII", at, len(key), len(items)) + head + body


def write(path, blocks, fields, page):
    """blocks: (records, definitions) each."""
    out, samples, table = b"", [], []
    for number, (records, definitions) in enumerate(blocks):
        start, first, body = len(out), len(samples), b""
        for data in records:
            body = body.ljust(up(len(body), 64), b"\0")
            samples.append((start + 64 + len(body), len(data)))
            body += data
        body = body.ljust(up(len(body), 8), b"\0") + b"".join(definitions)
        size = 64 + len(body)
        rest = struct.pack("<QQQIIQQ", size, number, first, len(records), len(b"".join(definitions)), page, 0) + body
        crc = crc32c(rest)
        out += MAGIC + struct.pack("<II", 1, crc) + rest
        out = out.ljust(start + up(size, page if number + 1 < len(blocks) else 64), b"\0")
        table.append((start, size, first, len(records), crc))
    index = b"".join(struct.pack("<QQ", *s) for s in samples) + b"".join(struct.pack("<QQQII", *b) for b in table) + b"".join(fields)
    footer = struct.pack("<QQQQIIQI", len(out), len(index), len(samples), len(table), len(fields), crc32c(index), page, 1)
    path.write_bytes(out + index + footer + struct.pack("<I", crc32c(footer)) + END)


def read(path):
    """Yields (key, {name: (kind, dtype, shape, data)})."""
    file = path.read_bytes()
    footer = file[-64:]
    assert file[:8] == MAGIC and footer[56:] == END and struct.unpack_from("<I", file, 8)[0] == 1
    index_at, index_bytes, n, blocks, field_count, crc, page, version, footer_crc = struct.unpack_from("<QQQQIIQII", footer)
    index = file[index_at : index_at + index_bytes]
    assert version == 1 and footer_crc == crc32c(footer[:52]) and crc == crc32c(index) and index_at + index_bytes == len(file) - 64
    for b in range(blocks):
        start, size, first, count, crc = struct.unpack_from("<QQQII", index, 16 * n + 32 * b)
        assert start % page == 0 and crc32c(file[start + 16 : start + size]) == crc
        header = struct.unpack_from("<8sIIQQQIIQQ", file, start)
        assert header[:7] == (MAGIC, 1, crc, size, b, first, count) and header[8:] == (page, 0)
    fields, at = [], 16 * n + 32 * blocks
    while at < index_bytes:
        length, kind, dtype, dims = struct.unpack_from("<HBBI", index, at)
        shape = struct.unpack_from(f"<{dims}Q", index, at + 8)
        fields.append((index[at + 8 + 8 * dims :][:length].decode(), kind, dtype, shape))
        at += up(8 + 8 * dims + length, 8)
    assert len(fields) == field_count
    for s in range(n):
        offset, size = struct.unpack_from("<QQ", index, 16 * s)
        sample = file[offset : offset + size]
        total, key_bytes, items = struct.unpack_from("<QII", sample)
        assert total == size and offset % 8 == 0
        parts = {}
        for i in range(items):
            number, dims, start, length = struct.unpack_from("<IIQQ", sample, 16 + 24 * i)
            name, kind, dtype, shape = fields[number]
            if kind == SHAPED:
                shape = struct.unpack_from(f"<{dims}Q", sample, start - 8 * dims)
            if kind != FILE:
                assert (offset + start) % 64 == 0
                count = WIDTH[dtype]
                for side in shape:
                    count *= side
                assert count == length
            parts[name] = (kind, dtype, shape, sample[start : start + length])
        yield sample[16 + 24 * items :][:key_bytes].decode(), parts


def golden():
    fields = [definition(b"png", FILE), definition(b"image", FIXED, 0, (2, 3, 1)), definition(b"tokens", SHAPED, 3), definition(b"jpg", FILE)]
    first = [
        record(b"a/0", [(0, FILE, (), b"not a picture")]),
        record(b"", [(1, FIXED, (2, 3, 1), bytes(range(6))), (2, SHAPED, (3,), struct.pack("<3i", 1, -2, 3))]),
        record(b"a/2", [(2, SHAPED, (0, 4), b""), (0, FILE, (), b"")]),
    ]
    large = [record(b"large", [(3, FILE, (), bytes(i % 251 for i in range(9000)))])]
    last = [record(b"end", []), record("ü".encode(), [(1, FIXED, (2, 3, 1), b"\xff" * 6)])]
    write(OUT, [(first, fields[:3]), (large, fields[3:]), (last, [])], fields, 4096)


parser = argparse.ArgumentParser()
parser.add_argument("--verify", type=pathlib.Path)
arguments = parser.parse_args()
if arguments.verify:
    for key, parts in read(arguments.verify):
        print(repr(key), {name: (kind, dtype, shape, len(data)) for name, (kind, dtype, shape, data) in parts.items()})
else:
    golden()
