"""Reads the functions of BPF objects (ELF files for the machine BPF, little-endian)."""

import collections
import struct

MAGIC = b"\x7fELF\x02\x01\x01"
RELOCATABLE, BPF = 1, 247
EXECUTABLE, SYMBOL_TABLE, RELOCATIONS, FUNCTION = 4, 2, 9, 2
CALL, LOAD_64, MOVE, ADD = 0x85, 0x18, 0xBF, 0x07
UNDEFINED = 0
# The source register of a call of another function of the object.
PSEUDO_CALL = 1
FRAME_POINTER = 10

Section = collections.namedtuple("Section", "name kind flags offset size link info")
Symbol = collections.namedtuple("Symbol", "name kind section value size")


class Function:
    """A function of an object: its instructions, its bytes of stack and the functions it calls."""

    def __init__(self, symbol, is_program):
        self.name, self.is_program = symbol.name, is_program
        self.section, self.start, self.size = symbol.section, symbol.value, symbol.size
        self.instructions = symbol.size // 8
        self.stack = 0
        self.callees = set()

    def reachable(self):
        """Returns the function and all that it can call."""
        found, pending = {self}, [self]
        while pending:
            new = pending.pop().callees - found
            found |= new
            pending += new
        return found

    def deepest(self, measure):
        """Returns the chain of calls from here for which the sum of the measure is the largest."""
        chains = [callee.deepest(measure) for callee in self.callees]
        return [self, *max(chains, key=lambda chain: sum(map(measure, chain)), default=[])]


def objects_in(data):
    """Returns the functions of each BPF object in a file, which may be one or contain several."""
    found, position = [], data.find(MAGIC)
    while position >= 0:
        if struct.unpack_from("<HH", data, position + 16) == (RELOCATABLE, BPF):
            found.append(functions_of(memoryview(data)[position:]))
        position = data.find(MAGIC, position + 1)
    return found


def functions_of(data):
    """Returns the functions of the object with which the data begins."""
    sections = sections_of(data)
    symbols = symbols_of(data, sections)
    functions = [
        Function(symbol, is_program=sections[symbol.section].name != ".text")
        for symbol in symbols
        if symbol.kind == FUNCTION and sections[symbol.section].flags & EXECUTABLE
    ]
    relocations = {}
    for section in sections:
        if section.kind == RELOCATIONS:
            for position in range(section.offset, section.offset + section.size, 16):
                where, info = struct.unpack_from("<QQ", data, position)
                relocations[section.info, where] = symbols[info >> 32]
    for function in functions:
        read_instructions(data, sections, function, functions, relocations)
    return functions


def sections_of(data):
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", data, table + i * size) for i in range(count)]
    names = headers[names][4]
    return [
        Section(text(data, names + name), kind, flags, offset, length, link, info)
        for name, kind, flags, _, offset, length, link, info in headers
    ]


def symbols_of(data, sections):
    table = next(section for section in sections if section.kind == SYMBOL_TABLE)
    strings = sections[table.link].offset
    symbols = []
    for position in range(table.offset, table.offset + table.size, 24):
        name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, position)
        symbols.append(Symbol(text(data, strings + name), info & 15, section, value, size))
    return symbols


def text(data, start):
    end = start
    while data[end]:
        end += 1
    return bytes(data[start:end]).decode()


def read_instructions(data, sections, function, functions, relocations):
    """Finds a function's stack and callees."""

    def function_at(section, offset):
        return next(f for f in functions if f.section == section and f.start == offset)

    base = sections[function.section].offset
    copies = set()
    for offset in range(function.start, function.start + function.size, 8):
        code, registers, displacement, immediate = struct.unpack_from("<BBhi", data, base + offset)
        target, source = registers & 15, registers >> 4
        is_load, is_store = code & 7 == 1, code & 7 in (2, 3)
        pointer = source if is_load else target
        if (is_load or is_store) and pointer == FRAME_POINTER:
            function.stack = max(function.stack, -displacement)
        # The address of a variable: the frame pointer is copied, then a number is added.
        if code == ADD and target in copies:
            function.stack = max(function.stack, -immediate)
        copies = {target} if code == MOVE and source == FRAME_POINTER else set()

        symbol = relocations.get((function.section, offset))
        if code == CALL and source == PSEUDO_CALL:
            if symbol is None:
                function.callees.add(function_at(function.section, offset + 8 + immediate * 8))
            elif symbol.kind == FUNCTION:
                function.callees.add(function_at(symbol.section, symbol.value))
            elif symbol.section != UNDEFINED:
                # The symbol is a section; the number is relative to the next instruction.
                function.callees.add(function_at(symbol.section, (immediate + 1) * 8))
            # An undefined symbol is a function of the kernel.
        elif code == LOAD_64 and symbol and sections[symbol.section].flags & EXECUTABLE:
            # A callback.
            inner = 0 if symbol.kind == FUNCTION else immediate
            function.callees.add(function_at(symbol.section, symbol.value + inner))
