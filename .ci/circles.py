"""Finds import circles between the source files of a crate, by their `use` lines.

A parent that declares a child does not import it; a child that uses its parent's items does. Tests
are left out. Prints one circle a line; prints nothing if there is none.
"""

import re
import sys
from pathlib import Path


def module_of(path, root):
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] in ("mod", "lib", "main"):
        parts.pop()
    return tuple(parts)


def imports(root):
    """The modules that each module of the crate imports."""
    files = {}
    for path in root.rglob("*.rs"):
        if "tests" not in path.parts and path.name != "tests.rs":
            files[module_of(path, root)] = path
    edges = {module: set() for module in files}
    for module, path in files.items():
        code = re.split(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*mod \w+ \{", path.read_text())[0]
        code = re.sub(r"//[^\n]*", "", code)
        for found in re.finditer(r"\buse ((?:crate|super|self)\b[^;]*);", code):
            for used in leaves(found.group(1)):
                target = resolve(module, used, files)
                if target is not None and target != module:
                    edges[module].add(target)
    return edges


def leaves(tree):
    """The single paths of a `use` tree, each as a list of names."""
    tree = re.sub(r"\s+", "", tree.replace(" as ", "@"))

    def walk(prefix, rest):
        for part in split(rest):
            if "{" in part:
                head, inner = part.split("{", 1)
                yield from walk(prefix + head, inner.rsplit("}", 1)[0])
            elif part:
                yield prefix + part

    return [leaf.split("@")[0].split("::") for leaf in walk("", tree)]


def split(text):
    """Splits at the commas outside braces."""
    parts, depth, last = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(text[last:index])
            last = index + 1
    return parts + [text[last:]]


def resolve(module, path, files):
    """The innermost module on a path; None if the path leaves the crate."""
    at = list(module)
    if path[0] == "crate":
        at, path = [], path[1:]
    elif path[0] == "self":
        path = path[1:]
    else:
        while path and path[0] == "super":
            if not at:
                return None
            at.pop()
            path = path[1:]
    best = tuple(at)
    for name in path:
        if best + (name,) not in files:
            break
        best += (name,)
    return best if best in files else None


def circles(edges):
    """Strongly connected components of more than one module (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in edges[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            start = stack.index(module)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(component)

    for module in edges:
        if module not in index:
            visit(module)
    return found


sys.setrecursionlimit(10_000)
for crate in sys.argv[1:]:
    for circle in circles(imports(Path(crate))):
        print(crate + ":", ", ".join(sorted("::".join(module) or "lib" for module in circle)))
