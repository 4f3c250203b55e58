"""Checks that every path which ARCHITECTURE.md and CONTRIBUTING.md name is there.

A path is a word in backticks with a slash or a source file's ending. It may be relative to the root,
to a room, or to a room's `src`. Prints the missing ones; prints nothing if there are none.
"""

import re
import subprocess
from pathlib import Path

ROOTS = [Path(root) for root in (
    ".",
    "actors/protocol/src",
    "actors/protocol/src/coordinator",
    "actors/protocol/src/wire",
    "actors/src",
    "runtime",
    "runtime/src",
    "chaos-tests",
)]
ENDINGS = (".rs", ".md", ".toml", ".sh")
tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
names = {Path(path).name for path in tracked}


def variants(word):
    """`a/{b,c}.rs` names two paths."""
    found = re.match(r"(.*)\{([^}]*)\}(.*)", word)
    return [found[1] + part + found[3] for part in found[2].split(",")] if found else [word]


def exists(path):
    return path in names or any((root / path).exists() for root in ROOTS)


for document in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
    for number, line in enumerate(Path(document).read_text().splitlines(), 1):
        for word in re.findall(r"`([A-Za-z0-9_./{},-]+)`", line):
            is_path = word.endswith(ENDINGS) or ("/" in word and not word.startswith("/"))
            if is_path and "FILE" not in word and not word.startswith("target"):
                for path in variants(word):
                    if not exists(path.rstrip("/")):
                        print(f"{document}:{number}: {path}")
