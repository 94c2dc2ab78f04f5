"""What a compiled program does, read from its optimized HLO: collectives, and bytes touched.

XLA's own sums do not tell what runs at every execution from what stands in a branch or a loop.
Here every instruction comes with the control flow that leads to it from the entry computation.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# These only name or group buffers, or leave the work to the computations that they call.
_TOUCH_NOTHING = (
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "parameter",
    "partition-id",
    "tuple",
    "while",
)
_CALLERS = ("async-start", "call", "conditional", "while")


class Instruction(NamedTuple):
    name: str
    kind: str
    result: str  # Its type as written, a tuple's in parentheses.
    operands: tuple[str, ...]
    attributes: str


class Collective(NamedTuple):
    kind: str  # "all-reduce"; asynchronous forms too.
    bytes: int  # Of the result on one device, all arrays of a tuple together.
    group: int  # How many devices take part in one of them.
    computation: str  # The one that it stands in.
    inside: tuple[str, ...]  # ("conditional",) in a branch; () where it runs every time.


def collectives(hlo: str) -> list[Collective]:
    """Every collective that a program may run, asynchronous pairs counted once.

    Examples:
        >>> program = '''
        ... HloModule example
        ... %rare (p: f32[4]) -> (f32[4], f32[2]) {
        ...   %p = f32[4]{0} parameter(0)
        ...   %half = f32[2]{0} slice(%p), slice={[0:2]}
        ...   ROOT %sum = (f32[4]{0}, f32[2]{0}) all-reduce(%p, %half), replica_groups=[2,4]<=[8]
        ... }
        ... %usual (q: f32[4]) -> (f32[4], f32[2]) {
        ...   ...
        ... }
        ... ENTRY %main (a: f32[4], b: s32[]) -> f32[8] {
        ...   %a = f32[4]{0} parameter(0)
        ...   %b = s32[] parameter(1)
        ...   %c = (f32[4], f32[2]) conditional(%b, %a, %a), branch_computations={%usual, %rare}
        ...   %start = (f32[4]{0}, f32[8]{0}) all-gather-start(%a), replica_groups={{0,1},{2,3}}
        ...   ROOT %done = f32[8]{0} all-gather-done(%start)
        ... }
        ... '''
        >>> for c in collectives(program):
        ...     print(c.kind, c.bytes, c.group, c.computation, c.inside)
        all-reduce 24 4 rare ('conditional',)
        all-gather 32 2 main ()
    """
    computations, entry = _parse(hlo)
    found = []
    for computation, instruction, inside in _reachable(computations, entry, ()):
        kind = instruction.kind.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        result = instruction.result
        if instruction.kind.endswith("-start"):  # Its own result holds the operands too.
            result = next(
                other.result
                for other in computations[computation]
                if other.kind == f"{kind}-done" and instruction.name in other.operands
            )
        group = _group_size(instruction.attributes)
        found.append(Collective(kind, _bytes(result), group, computation, inside))
    return found


def bytes_accessed(hlo: str) -> dict[tuple[str, ...], int]:
    """Bytes that all instructions read and write, by the control flow that leads to them.

    Operands and results count in full, as they mostly do in XLA's cost analysis, and a fusion as
    one instruction, of an operand that it slices too. The body of a loop counts once.

    Examples:
        >>> bytes_accessed('''
        ... ENTRY %main (a: f32[4]) -> f32[4] {
        ...   %a = f32[4]{0} parameter(0)
        ...   ROOT %b = f32[4]{0} negate(%a)
        ... }
        ... ''')
        {(): 32}
    """
    computations, entry = _parse(hlo)
    sizes = {i.name: _bytes(i.result) for body in computations.values() for i in body}
    totals: dict[tuple[str, ...], int] = {}
    for _, instruction, inside in _reachable(computations, entry, ()):
        if instruction.kind not in _TOUCH_NOTHING:
            operands = sum(sizes[name] for name in instruction.operands)
            totals[inside] = totals.get(inside, 0) + operands + sizes[instruction.name]
    return totals


def _parse(hlo: str) -> tuple[dict[str, list[Instruction]], str]:
    """The instructions of every computation, and the name of the entry computation."""
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    body: list[Instruction] = []
    for line in re.sub(r"/\*.*?\*/", "", hlo).splitlines():
        header = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$", line.strip())
        if header:
            body = computations[header[2]] = []
            entry = header[2] if header[1] else entry
            continue
        assigned = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*)", line)
        if assigned:
            name, rest = assigned.groups()
            end = _closing(rest) if rest.startswith("(") else rest.index(" ")
            result, rest = rest[:end], rest[end:].lstrip()
            kind, rest = rest.split("(", 1)
            end = _closing("(" + rest) - 1
            operands = tuple(re.findall(r"%([\w.\-]+)", rest[:end]))
            body.append(Instruction(name, kind, result, operands, rest[end:]))
    return computations, entry


def _closing(text: str) -> int:
    """The index behind the parenthesis that closes the one which ``text`` begins with."""
    depth = 0
    for index, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return index + 1
    raise ValueError(f"unbalanced parentheses: {text[:80]}")


def _reachable(
    computations: dict[str, list[Instruction]], name: str, inside: tuple[str, ...]
) -> Iterator[tuple[str, Instruction, tuple[str, ...]]]:
    """All instructions that may run, each with its computation and the control flow around it."""
    for instruction in computations[name]:
        yield name, instruction, inside
        if instruction.kind in _CALLERS:
            is_control_flow = instruction.kind in ("conditional", "while")
            deeper = (*inside, instruction.kind) if is_control_flow else inside
            for callee in re.findall(r"%([\w.\-]+)", instruction.attributes):
                if callee in computations:
                    yield from _reachable(computations, callee, deeper)


def _bytes(result: str) -> int:
    """The size of a type such as ``(f32[8,4]{1,0}, pred[])``."""
    total = 0
    for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", result):
        width = re.match(r"[a-z]+(\d+)", dtype)
        bits = int(width[1]) if width else {"pred": 8}.get(dtype, 0)  # A token has no size.
        total += math.prod(int(n) for n in shape.split(",") if n) * bits // 8
    return total


def _group_size(attributes: str) -> int:
    """How many devices one group has, in any of the ways in which XLA writes groups."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return len(listed[1].split(","))
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes):
        return int(iota[1])
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\][^{]* \{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
    raise ValueError(f"no replica groups that this reader knows: {attributes[:200]}")
