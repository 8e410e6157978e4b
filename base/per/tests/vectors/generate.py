#!/usr/bin/env python3
"""Writes vectors.tsv: values as pycrate encodes them, in the order and with the types of tests/per.rs.

Each line: name, aligned encoding, unaligned encoding. Every value stands behind a BOOLEAN, so that padding
shows. Needs pycrate (scripts/requirements.txt); run it when a vector is added.
"""

import contextlib
import importlib.util
import io
import os
import tempfile

from pycrate_asn1c.asnproc import compile_text
from pycrate_asn1c.generator import PycrateGenerator

CASES = [
    # name, type, value
    ("int-span-1", "INTEGER (5..5)", 5),
    ("int-span-100", "INTEGER (3..102)", 77),
    ("int-span-255", "INTEGER (0..254)", 254),
    ("int-span-256", "INTEGER (0..255)", 200),
    ("int-span-257", "INTEGER (0..256)", 256),
    ("int-span-64k", "INTEGER (0..65535)", 4660),
    ("int-span-64k-1", "INTEGER (0..65536)", 65536),
    ("int-32-small", "INTEGER (0..4294967295)", 7),
    ("int-32-large", "INTEGER (0..4294967295)", 4294967295),
    ("int-40", "INTEGER (0..1099511627775)", 78187493530),
    ("int-negative", "INTEGER (-156..-31)", -100),
    ("int-rate", "INTEGER (0..4000000000000, ...)", 2500000000),
    ("int-extended", "INTEGER (0..255, ...)", 256),
    ("int-extended-negative", "INTEGER (0..255, ...)", -129),
    ("int-at-least", "INTEGER (-1..MAX)", 4096),
    ("int-any", "INTEGER", -32769),
    ("int-any-128", "INTEGER", 128),
    ("int-any-zero", "INTEGER", 0),
    ("enum", "ENUMERATED {a, b, c}", "c"),
    ("enum-one", "ENUMERATED {a}", "a"),
    ("enum-root", "ENUMERATED {a, b, c, ...}", "b"),
    ("enum-addition", "ENUMERATED {a, b, ..., c, d}", "d"),
    ("enum-addition-64", "ENUMERATED {a, ..., %s}" % ", ".join("x%d" % i for i in range(70)), "x69"),
    ("bits-10", "BIT STRING (SIZE (10))", (0x2a5, 10)),
    ("bits-16", "BIT STRING (SIZE (16))", (0xa55a, 16)),
    ("bits-36", "BIT STRING (SIZE (36))", (0x123456789, 36)),
    ("bits-address", "BIT STRING (SIZE (1..160, ...))", (0x0a010203, 32)),
    ("bits-any", "BIT STRING", (0x1a5, 9)),
    ("bits-outside", "BIT STRING (SIZE (1..4, ...))", (0x1f, 5)),
    ("octets-1", "OCTET STRING (SIZE (1))", b"\x81"),
    ("octets-2", "OCTET STRING (SIZE (2))", b"\x81\x82"),
    ("octets-3", "OCTET STRING (SIZE (3))", b"\x81\x82\x83"),
    ("octets-range", "OCTET STRING (SIZE (1..8))", b"\x81\x82\x83"),
    ("octets-range-empty", "OCTET STRING (SIZE (0..8))", b""),
    ("octets-any", "OCTET STRING", b"\x81\x82\x83"),
    ("octets-any-empty", "OCTET STRING", b""),
    ("octets-200", "OCTET STRING", bytes(200)),
    ("octets-16383", "OCTET STRING", bytes(16383)),
    ("octets-16384", "OCTET STRING", bytes(16384)),
    ("octets-100000", "OCTET STRING", bytes(100000)),
    ("printable", "PrintableString (SIZE (1..150, ...))", "godwit du 1"),
    ("printable-1", "PrintableString (SIZE (1))", "g"),
    ("visible-2", "VisibleString (SIZE (2))", "ab"),
    ("visible-3", "VisibleString (SIZE (3))", "abc"),
    ("list", "SEQUENCE (SIZE (1..64)) OF INTEGER (0..15)", [1, 2, 3]),
    ("list-256", "SEQUENCE (SIZE (1..256)) OF INTEGER (0..15)", [1, 2, 3]),
    ("list-any", "SEQUENCE OF INTEGER (0..15)", [1, 2, 3]),
    ("sequence", "SEQUENCE {a INTEGER (0..7) OPTIONAL, b INTEGER (0..7) OPTIONAL, ...}", {"b": 5}),
    ("sequence-extended",
     "SEQUENCE {a INTEGER (0..7) OPTIONAL, ..., b BOOLEAN OPTIONAL, c OCTET STRING OPTIONAL, d NULL OPTIONAL}",
     {"a": 5, "c": b"\x81", "d": 0}),
    ("choice", "CHOICE {a NULL, b INTEGER (0..255), c BOOLEAN, ...}", ("b", 9)),
    ("choice-addition", "CHOICE {a NULL, ..., b INTEGER (0..255)}", ("b", 9)),
]

# The aligned encoder of pycrate 0.7.8 pads additions by their position before the bitmap. Our encodings:
PADDED_WRONGLY = {"sequence-extended": "f4130201810100"}


def main():
    module = "PerTest DEFINITIONS AUTOMATIC TAGS ::= BEGIN\n"
    for index, (_, kind, _) in enumerate(CASES):
        module += "Case%d ::= SEQUENCE { lead BOOLEAN, value %s }\n" % (index, kind)
    module += "END\n"
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        compile_text(module)
        path = os.path.join(folder, "per_test.py")
        PycrateGenerator(path)
        spec = importlib.util.spec_from_file_location("per_test", path)
        types = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(types)
    lines = ["# Written by generate.py with pycrate; do not edit."]
    for index, (name, _, value) in enumerate(CASES):
        case = getattr(types.PerTest, "Case%d" % index)
        case.set_val({"lead": True, "value": value})
        octets = [case.to_aper().hex(), case.to_uper().hex()]
        if name in PADDED_WRONGLY:
            # Of these, the decoder has to read what we write.
            case.from_aper(bytes.fromhex(PADDED_WRONGLY[name]))
            assert case.get_val() == {"lead": True, "value": value}, case.get_val()
            octets[0] = PADDED_WRONGLY[name]
        # Long runs would fill the file.
        lines.append("\t".join([name] + [o.replace("00" * 1000, ".") for o in octets]))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.tsv")
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")


main()
